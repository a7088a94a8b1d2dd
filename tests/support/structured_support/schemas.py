"""JSON Schemas of increasing difficulty: the categories of JSON-Schema-Test-Suite, and typical schemas of users."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

Schema = dict[str, Any]


class Case(NamedTuple):
    """A schema; `ends`: all its documents are short."""

    name: str
    schema: Schema
    ends: bool = True


TEXT = {"type": "string", "maxLength": 8}
SMALL = {"type": "integer", "minimum": 0, "maximum": 99}


def record(properties: Schema, required: list[str] | None = None, /, **more: Any) -> Schema:
    """Return the schema of an object with these properties; by default all are required and no others are allowed."""
    wanted = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": wanted, "additionalProperties": False, **more}


def cases() -> list[Case]:
    """Return all cases, each with a unique name."""
    makers = (
        _types,
        _lengths,
        _patterns,
        _formats,
        _integers,
        _numbers,
        _enums,
        _arrays,
        _objects,
        _unions,
        _all_of,
        _references,
        _unicode,
        _real,
        _deep_and_wide,
        _random,
    )
    return [
        Case(f"{maker.__name__[1:]}-{index}", schema, ends)
        for maker in makers
        for index, (schema, ends) in enumerate(_with_ends(maker()))
    ]


def _with_ends(schemas: Iterator[Schema | tuple[Schema, bool]]) -> Iterator[tuple[Schema, bool]]:
    for schema in schemas:
        yield schema if isinstance(schema, tuple) else (schema, True)


def _types() -> Iterator[Schema | tuple[Schema, bool]]:
    yield {"type": "boolean"}
    yield {"type": "null"}
    yield {"type": ["boolean", "null"]}
    for kind in ("string", "integer", "number", "object", "array"):
        yield {"type": kind}, False
    yield {}, False
    yield {"type": ["integer", "string"], "maxLength": 3, "minimum": 0, "maximum": 9}


def _lengths() -> Iterator[Schema]:
    for low, high in ((0, 0), (0, 1), (1, 1), (3, 3), (2, 5), (5, 20), (17, 23), (40, 40)):
        yield {"type": "string", "minLength": low, "maxLength": high}
        yield record({"text": {"type": "string", "minLength": low, "maxLength": high}})


PATTERNS = (
    "^[a-z]{3}$",
    "^[A-Z][a-z]{1,6}$",
    r"^\d{3}-\d{4}$",
    r"^(\+\d{1,2} )?\d{3,8}$",
    "^(red|green|blue)$",
    "^[^a-z]{2,4}$",
    "^[0-9a-f]{8}$",
    r"^v\d+\.\d{1,2}\.\d$",
    "^(a|b)?c{2}d{0,3}$",
    r"^[\w]{1,5}@[\w]{1,5}\.com$",
    "^.{2,6}$",
    "^x$",
    "^$",
    r"^\$[1-9]\d{0,3}$",
    "^(ab){1,4}$",
    r"^[ -~]{0,10}$",
    "^[äöü]{2}$",
    r'^"?q"?$',
    r"^\\[nt]$",
    "^/[a-z]{1,4}(/[a-z]{1,4}){0,2}$",
)


def _patterns() -> Iterator[Schema | tuple[Schema, bool]]:
    for pattern in PATTERNS:
        yield {"type": "string", "pattern": pattern}, not pattern.startswith(r"^v\d+")
    yield record({"code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{3}$"}, "id": {"pattern": "^x+$"}}), False


FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "uri", "hostname", "duration")


def _formats() -> Iterator[tuple[Schema, bool]]:
    for name in FORMATS:
        ends = name in ("date", "uuid", "ipv4", "ipv6")
        yield {"type": "string", "format": name}, ends
        yield record({"value": {"type": "string", "format": name}}), ends


def _integers() -> Iterator[Schema | tuple[Schema, bool]]:
    for low, high in ((0, 0), (0, 9), (-5, 5), (10, 99), (-99, -10), (1, 65535), (17, 4711), (-1, 1000), (100, 101)):
        yield {"type": "integer", "minimum": low, "maximum": high}
        yield {"type": "integer", "exclusiveMinimum": low - 1, "exclusiveMaximum": high + 1}
    yield {"type": "integer", "minimum": 7}, False
    yield {"type": "integer", "maximum": -7}, False
    for step in (2, 5, 10):
        yield {"type": "integer", "multipleOf": step, "minimum": 0, "maximum": 400}


def _numbers() -> Iterator[tuple[Schema, bool]]:
    for low, high in ((0, 1), (-1, 1), (0.5, 2.25), (10, 20), (-273.15, 1000)):
        yield {"type": "number", "minimum": low, "maximum": high}, False
        yield {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}, False


def _enums() -> Iterator[Schema]:
    for values in (
        ["a"],
        ["yes", "no"],
        [1, 2, 3],
        [True, False, None],
        ["", " ", "\n", '"', "\\"],
        ["é", "日本", "🙂", "\u0000"],
        [1, "1", 1.5, None, [1], {"a": 1}],
        [f"option-{i}" for i in range(100)],
        [{"x": 1, "y": [2, 3]}, {"x": 2}],
    ):
        yield {"enum": values}
        yield record({"choice": {"enum": values}})
    for value in ("fixed", 42, None, True, [1, 2], {"a": {"b": "c"}}, "ünï", ""):
        yield {"const": value}


def _arrays() -> Iterator[Schema]:
    for low, high in ((0, 0), (0, 1), (1, 1), (2, 3), (0, 5), (4, 4)):
        yield {"type": "array", "items": SMALL, "minItems": low, "maxItems": high}
        yield {"type": "array", "items": TEXT, "minItems": low, "maxItems": high}
    yield {"type": "array", "items": {"type": "boolean"}, "maxItems": 6}
    yield {"type": "array", "prefixItems": [SMALL, TEXT], "items": False, "minItems": 2}
    yield {"type": "array", "prefixItems": [{"const": "point"}, SMALL, SMALL], "items": False, "minItems": 3}
    yield {"type": "array", "prefixItems": [SMALL], "items": TEXT, "minItems": 1, "maxItems": 3}
    row = {"type": "array", "items": SMALL, "minItems": 2, "maxItems": 2}
    yield {"type": "array", "items": row, "minItems": 2, "maxItems": 2}
    yield {"type": "array", "items": record({"k": SMALL}), "maxItems": 3}
    yield {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3}


def _objects() -> Iterator[Schema | tuple[Schema, bool]]:
    for count in (0, 1, 2, 4):
        names = [f"p{i}" for i in range(4)]
        yield record(dict.fromkeys(names, SMALL), names[:count])
        yield record(dict.fromkeys(names, TEXT), names[count:])
    yield record({"a": SMALL}, additionalProperties={"type": "boolean"}), False
    yield record({"a": SMALL}, additionalProperties=True), False
    yield {"type": "object", "additionalProperties": False}
    yield {"type": "object", "additionalProperties": SMALL, "maxProperties": 2}, False
    yield {"type": "object", "patternProperties": {"^x[0-9]$": SMALL}, "additionalProperties": False}, False
    yield {"properties": {"a": SMALL}, "required": ["a"], "type": "object", "additionalProperties": False}
    yield record({"a": record({"b": record({"c": SMALL})})})
    yield record({"a": SMALL, "b": TEXT, "c": {"type": "boolean"}}, ["b"])
    yield record({"with space": SMALL, "with-dash": SMALL, 'with"quote': SMALL, "": SMALL})
    yield record({"type": {"const": "object"}, "properties": TEXT, "$ref": SMALL, "enum": SMALL})
    for count in (8, 20, 40):
        yield record({f"field_{i}": ({"type": "boolean"}, SMALL)[i % 2] for i in range(count)})


def _unions() -> Iterator[Schema | tuple[Schema, bool]]:
    kinds = (SMALL, TEXT, {"type": "boolean"}, {"type": "null"}, {"type": "array", "items": SMALL, "maxItems": 2})
    for left, right in itertools.combinations(kinds, 2):
        yield {"anyOf": [left, right]}
        yield {"oneOf": [left, right]}
    for kind in (SMALL, TEXT):
        yield record({"maybe": {"anyOf": [kind, {"type": "null"}]}})
    shapes = [record({"kind": {"const": f"k{i}"}, f"v{i}": SMALL}) for i in range(4)]
    yield {"anyOf": shapes}
    yield {"oneOf": shapes[:2]}
    yield record({"shape": {"anyOf": shapes}, "name": TEXT})
    yield {"type": "array", "items": {"anyOf": shapes}, "minItems": 1, "maxItems": 2}


def _all_of() -> Iterator[Schema]:
    yield {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 9}]}
    yield {"allOf": [{"type": "string", "maxLength": 5}, {"minLength": 2}]}
    left, right = {"properties": {"a": SMALL}, "required": ["a"]}, {"properties": {"b": SMALL}, "required": ["b"]}
    yield {
        "type": "object",
        "allOf": [left, right],
        "properties": {"a": True, "b": True},
        "additionalProperties": False,
    }
    yield {"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}]}
    yield {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": SMALL}}


def _references() -> Iterator[Schema | tuple[Schema, bool]]:
    yield {"$ref": "#/$defs/n", "$defs": {"n": SMALL}}
    yield record({"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/n"}}, **{"$defs": {"n": SMALL}})
    yield record({"a": {"$ref": "#/definitions/n"}}, definitions={"n": TEXT})
    yield record({"a": SMALL, "b": {"$ref": "#/properties/a"}})
    point = record({"x": SMALL, "y": SMALL})
    yield record({"from": {"$ref": "#/$defs/p"}, "to": {"$ref": "#/$defs/p"}}, **{"$defs": {"p": point}})
    node = record({"value": SMALL, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}})
    yield {"$ref": "#/$defs/node", "$defs": {"node": node}}, False
    tree = record({"name": TEXT, "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}})
    yield tree, False
    yield {"$ref": "#/$defs/a~1b", "$defs": {"a/b": SMALL}}
    yield {"$ref": "#/$defs/a%25b", "$defs": {"a%b": SMALL}}


def _unicode() -> Iterator[Schema]:
    yield record({"naïve": SMALL, "名前": TEXT, "🙂": {"type": "boolean"}})
    yield {"enum": ["žluťoučký", "кот", "𝒳", "a\u0301"]}
    yield {"type": "string", "pattern": "^[а-я]{2,5}$"}
    yield {"type": "string", "pattern": "^[🙂🙃]{1,3}$"}
    yield {"type": "string", "minLength": 2, "maxLength": 2}


def _real() -> Iterator[Schema | tuple[Schema, bool]]:
    unit = {"enum": ["celsius", "fahrenheit"]}
    yield record({"location": TEXT, "unit": unit}, ["location"], title="get_weather", description="Weather.")
    yield record({"query": TEXT, "limit": SMALL, "tags": {"type": "array", "items": TEXT, "maxItems": 2}})
    person = record({"name": TEXT, "age": SMALL, "email": {"anyOf": [TEXT, {"type": "null"}], "default": None}})
    yield person
    yield record(
        {"people": {"type": "array", "items": {"$ref": "#/$defs/P"}, "maxItems": 2}}, **{"$defs": {"P": person}}
    )
    step = record({"explanation": TEXT, "output": TEXT})
    yield record({"steps": {"type": "array", "items": step, "minItems": 1, "maxItems": 2}, "final_answer": TEXT})
    yield record({"sentiment": {"enum": ["positive", "negative", "neutral"]}, "score": {"enum": [1, 2, 3, 4, 5]}})
    yield record({"sql": {"type": "string", "maxLength": 30}, "safe": {"type": "boolean"}})
    call = [
        record({"name": {"const": name}, "arguments": record({"x": SMALL})}) for name in ("add", "subtract", "multiply")
    ]
    yield {"anyOf": call}
    yield record({"invoice": record({"number": {"type": "string", "pattern": "^INV-[0-9]{6}$"}, "total": SMALL})})
    yield record({"answer": {"type": "string"}}), False
    yield {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/x", **person}
    yield record({"bbox": {"type": "array", "items": SMALL, "minItems": 4, "maxItems": 4}, "label": {"enum": ["cat"]}})


def _deep_and_wide() -> Iterator[Schema]:
    for depth in (2, 4, 8, 12):
        schema: Schema = SMALL
        for _ in range(depth):
            schema = record({"a": schema})
        yield schema
        nested: Schema = SMALL
        for _ in range(depth):
            nested = {"type": "array", "items": nested, "minItems": 1, "maxItems": 1}
        yield nested
    for width in (2, 8, 32):
        yield {"anyOf": [record({f"only_{i}": SMALL}) for i in range(width)]}


def _random() -> Iterator[Schema]:
    for seed in range(110):
        yield _drawn(random.Random(seed), 3)


def _drawn(draw: random.Random, depth: int) -> Schema:
    """Draw a schema of short documents, nested up to a depth."""
    leaves: list[Schema] = [
        SMALL,
        TEXT,
        {"type": "boolean"},
        {"type": "null"},
        {"enum": draw.sample(["a", "b", 1, 2, None, "ü", [], {}], 3)},
        {"const": draw.choice(["c", 7, False])},
        {"type": "string", "pattern": draw.choice(PATTERNS[:7])},
        {"type": "integer", "minimum": draw.randint(-50, 0), "maximum": draw.randint(0, 500)},
    ]
    kind = draw.choice(["leaf", "object", "array", "anyOf"]) if depth else "leaf"
    if kind == "object":
        names = draw.sample(["id", "name", "value", "ok", "items", "größe"], draw.randint(1, 4))
        properties = {name: _drawn(draw, depth - 1) for name in names}
        return record(properties, draw.sample(names, draw.randint(0, len(names))))
    if kind == "array":
        return {"type": "array", "items": _drawn(draw, depth - 1), "maxItems": draw.randint(0, 2)}
    if kind == "anyOf":
        return {"anyOf": [_drawn(draw, depth - 1) for _ in range(draw.randint(1, 3))]}
    return draw.choice(leaves)
