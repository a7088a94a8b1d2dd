"""Random values that a JSON schema allows: mostly small ones, and often the limits of allowed ranges."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]
MOST_ITEMS, DEEPEST = 3, 6
WORDS = (
    "a",
    "Hi",
    "the cat",
    "",
    " ",
    "ä",
    "日本語",
    "😀",
    "e\u0301",
    "\u202e",
    "\x00",
    "\ud7ff",
    "{{ x }}",
    "<|user|>",
)
SCHEMAS: tuple[Any, ...] = (
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
    {"type": "array", "items": {"enum": ["x", 1, None]}, "maxItems": 3},
    {"type": "string", "pattern": "^[a-c]{2,4}$"},
    {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/t"}], "$defs": {"t": {"type": "number", "minimum": 0}}},
    {"type": "object", "properties": {"": {}}, "minProperties": 1},
    {"type": "object", "not": {}},
    {"$ref": "#/nowhere"},
    {"type": "array", "items": {"$ref": "#"}},
    {},
)
REGEXES = ("[a-c]+", "a{2,5}", "(x|y)*z", "\\d{4}", "(", "a{1,100000}", "(?=a)", "")
GRAMMARS = ('start: "a"+', 'root ::= [a-z]+ "\\n"', "start:", 'start: "a" start | "b"', "root ::= root", "")
Draw = Callable[[random.Random], Any]


def _one_of(*choices: Any) -> Draw:
    return lambda rng: rng.choice(choices)


HINTS: Mapping[str, Draw] = {
    "max_tokens": lambda rng: rng.randint(1, 24),
    "max_completion_tokens": lambda rng: rng.randint(1, 24),
    "max_output_tokens": lambda rng: rng.randint(1, 24),
    "min_tokens": lambda rng: rng.randint(0, 3),
    "n": lambda rng: rng.choice((1, 1, 2, 4)),
    "best_of": lambda rng: rng.choice((1, 2, 4)),
    "deadline": _one_of(0.001, 0.05, 30, 600),
    "seed": lambda rng: rng.choice((0, 1, -1, 2**63 - 1, -(2**63), rng.randrange(1000))),
    "tokens": lambda rng: [rng.randrange(256) for _ in range(rng.randint(0, 8))],
    "stop_token_ids": lambda rng: [rng.randrange(257) for _ in range(rng.randint(0, 3))],
    "logit_bias": lambda rng: {str(rng.randrange(257)): rng.uniform(-100, 100) for _ in range(rng.randint(0, 4))},
    "dimensions": lambda rng: rng.randint(1, 40),
    "schema": _one_of(*SCHEMAS),
    "json": _one_of(*SCHEMAS),
    "parameters": _one_of(*SCHEMAS),
    "input_schema": _one_of(*SCHEMAS),
    "regex": _one_of(*REGEXES),
    "grammar": _one_of(*GRAMMARS),
    "budget_tokens": _one_of(1024, 2048),
    "arguments": _one_of("{}", '{"a": 1}', "{", "[]", ""),
    "name": _one_of("f", "get_weather", "a-b", "x" * 64, "ä"),
    "endpoint": _one_of("/v1/completions", "/v1/chat/completions", "/v1/embeddings"),
}
"""Replacements for fields whose random values would all be refused, or would only take time."""


class Values:
    """Generates values of one document's schemas. `known` has more hints, for names and ids of the server."""

    def __init__(self, document: Mapping[str, Any], rng: random.Random, known: Mapping[str, Draw]) -> None:
        self._document = document
        self._rng = rng
        self._hints = {**HINTS, **known}

    def of(self, schema: Any, depth: int = 0) -> Any:
        """Return a random value that the schema allows. `depth`: number of objects and arrays around it; deeper values
        nest less.
        """
        rng = self._rng
        if schema is True or schema == {}:
            return self.anything(depth)
        if "$ref" in schema:
            return self.of(self.resolved(schema), depth)
        if "const" in schema:
            return copy.deepcopy(schema["const"])
        if "enum" in schema:
            return copy.deepcopy(rng.choice(schema["enum"]))
        for choice in ("anyOf", "oneOf"):
            if choice in schema:
                return self.of(self._choose(schema[choice], depth), depth)
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = rng.choice(kind)
        match kind:
            case "object":
                return self.object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer":
                return round(self._number(schema, 1))
            case "number":
                return self._number(schema, 0)
            case "boolean":
                return rng.random() < 0.5
            case "null":
                return None
        return self.anything(depth)

    def object(self, schema: Schema, depth: int = 0, optional: float | None = None) -> dict[str, Any]:
        """Return an object with its required fields. Each other field is present with the probability `optional`; None:
        with one that yields about three, and fewer in nested objects.
        """
        rng, fields = self._rng, schema.get("properties", {})
        needed = schema.get("required", ())
        chance = optional if optional is not None else min(0.5, 3 / (1 + len(fields))) / (1 + depth)
        taken = [name for name in fields if name in needed or rng.random() < chance]
        made = {name: self.field(name, fields[name], depth + 1) for name in taken if _usable(fields[name])}
        more = schema.get("additionalProperties")
        if isinstance(more, dict) and depth < DEEPEST:
            made |= {rng.choice(WORDS): self.of(more, depth + 1) for _ in range(rng.randint(0, 2))}
        return made

    def field(self, name: str, schema: Any, depth: int = 0) -> Any:
        """Return a value of a field: from its hint, else from its schema."""
        hint = self._hints.get(name)
        return self.of(schema, depth) if hint is None else copy.deepcopy(hint(self._rng))

    def anything(self, depth: int = 0) -> Any:
        """Return any JSON value."""
        rng = self._rng
        if depth < DEEPEST and rng.random() < 0.3:
            inner = [self.anything(depth + 2) for _ in range(rng.randint(0, MOST_ITEMS))]
            return inner if rng.random() < 0.5 else {rng.choice(WORDS): value for value in inner}
        return rng.choice((None, True, 0, -1, 1.5, 2**53, rng.choice(WORDS)))

    def resolved(self, schema: Any) -> Any:
        """Return the schema that a reference names."""
        while "$ref" in schema:
            found: Any = self._document
            for part in schema["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            schema = found
        return schema

    def _choose(self, choices: list[Any], depth: int) -> Any:
        """Choose an alternative; when deeply nested, one that does not nest; null rarely."""
        flat = [c for c in choices if c is not True and c.get("type") not in ("null",)]
        if depth >= DEEPEST:
            flat = [c for c in flat if c.get("type") in ("string", "integer", "number", "boolean")] or flat[:1]
        return self._rng.choice(flat) if flat and self._rng.random() < 0.85 else choices[-1]

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        least = schema.get("minItems", 0)
        most = min(schema.get("maxItems", MOST_ITEMS), max(least, MOST_ITEMS if depth < DEEPEST else 0))
        return [self.of(schema.get("items", True), depth + 1) for _ in range(self._rng.randint(least, most))]

    def _string(self, schema: Schema) -> str:
        rng = self._rng
        text = "".join(rng.choice(WORDS) for _ in range(rng.randint(0, 4)))
        least, most = schema.get("minLength", 0), schema.get("maxLength", 1000)
        if rng.random() < 0.03:
            text = "x" * min(most, 300)
        return text[:most] if len(text) >= least else text + "x" * (least - len(text))

    def _number(self, schema: Schema, step: float) -> float:
        """Return a number mostly within the bounds, often at one of them."""
        rng = self._rng
        above = schema.get("exclusiveMinimum")
        low = schema.get("minimum", -4 if above is None else above + (step or 1e-3))
        below = schema.get("exclusiveMaximum")
        high = schema.get("maximum", max(low, 4) if below is None else below - (step or 1e-3))
        if rng.random() < 0.2:
            return rng.choice((low, high))  # type: ignore[no-any-return]
        return rng.randint(int(low), int(min(high, low + 10))) if step else rng.uniform(low, min(high, low + 3))


def _usable(schema: Any) -> bool:
    """Return whether the server supports a field (its `x-state` in the document is not "refused")."""
    return schema is True or schema.get("x-state") != "refused"
