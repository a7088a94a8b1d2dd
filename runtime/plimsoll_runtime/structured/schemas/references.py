"""Resolves the references of a schema, and finds its subschemas and the properties that it evaluates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from plimsoll_runtime.engine.protocol.constraint import ConstraintError
from plimsoll_runtime.structured.schemas.problems import Place
from plimsoll_runtime.structured.schemas.types import check_shapes, is_schema

_ONE = frozenset({
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
})  # fmt: skip
_LISTS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_MAPS = frozenset({"dependencies", "dependentSchemas", "patternProperties", "properties"})
DEFINITIONS = frozenset({"$defs", "definitions"})


def children(
    schema: Mapping[str, Any], place: Place, *, definitions: bool
) -> Iterator[tuple[Mapping[str, Any] | bool, Place]]:
    """Yield each subschema with its place, in order. `definitions` includes those that apply only if something refers
    to them.
    """
    for key, value in schema.items():
        if key in _ONE and is_schema(value):
            yield value, place.at(key)
        elif key in _LISTS and isinstance(value, list):
            for index, each in enumerate(value):
                if is_schema(each):
                    yield each, place.at(key, index)
        elif (key in _MAPS or (definitions and key in DEFINITIONS)) and isinstance(value, Mapping):
            for name, each in value.items():
                if is_schema(each):
                    yield each, place.at(key, name)


Schema = Mapping[str, Any]
KEYWORDS = ("$ref", "$dynamicRef", "$recursiveRef")
_BASE = "https://schema.invalid/"
MOST_DEPTH = 100
"""Maximum number of nested schemas."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a reference."""

    schema: Schema | bool
    place: Place


@dataclass(slots=True)
class References:
    """Resolved references of a document. Parts are identified by id(), because each occurs at one place.

    `targets` maps (id of a schema, keyword) to the reference's target; unresolvable references are missing. `referred`
    are the ids of all targets. Raises ConstraintError for an invalid keyword value in any schema that applies.
    """

    root: Schema
    place: Place
    targets: dict[tuple[int, str], Target] = field(default_factory=dict)
    referred: set[int] = field(default_factory=set)
    _bases: dict[int, str] = field(default_factory=dict)
    _documents: dict[str, Target] = field(default_factory=dict)
    _anchors: dict[str, Target] = field(default_factory=dict)
    _dynamic: dict[str, list[Target]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._index()
        seen: set[int] = set()
        waiting: list[tuple[Target, str]] = [(Target(self.root, self.place), _BASE)]
        while waiting:
            target, outer = waiting.pop()
            for schema, place, base in self._within(target, outer, seen):
                check_shapes(schema, place)
                waiting += self._follow(schema, base)

    def target(self, schema: Schema) -> Target | None:
        """Return the target of a schema's `$ref`; None if it has none, or it cannot be resolved."""
        return self.targets.get((id(schema), "$ref"))

    def _index(self) -> None:
        """Find all schemas with a name ($id or anchor)."""
        waiting: list[tuple[Schema | bool, Place, str, int]] = [(self.root, self.place, _BASE, 0)]
        self._documents[_BASE] = Target(self.root, self.place)
        while waiting:
            schema, place, base, depth = waiting.pop()
            if isinstance(schema, bool):
                continue
            if depth > MOST_DEPTH:
                raise ConstraintError(f"is nested too deeply: more than {MOST_DEPTH} schemas within each other")
            base = self._named(Target(schema, place), base)
            self._bases[id(schema)] = base
            waiting += [(each, at, base, depth + 1) for each, at in children(schema, place, definitions=True)]

    def _named(self, found: Target, base: str) -> str:
        """Record the schema's names and return the base URI of its references."""
        assert isinstance(found.schema, Mapping)
        name = found.schema.get("$id")
        if isinstance(name, str):
            if name.startswith("#"):  # anchors in drafts before 2019
                self._anchors.setdefault(base + name, found)
            else:
                base = _joined(base, name)
                self._documents.setdefault(base, found)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := found.schema.get(key), str):
                self._anchors.setdefault(f"{base}#{anchor}", found)
                if key == "$dynamicAnchor":
                    self._dynamic.setdefault(anchor, []).append(found)
        return base

    def _within(self, target: Target, base: str, seen: set[int]) -> Iterator[tuple[Schema, Place, str]]:
        """Yield the subschemas that apply whenever `target` does, with the base URIs of their references."""
        waiting = [(target.schema, target.place, base)]
        while waiting:
            schema, place, base = waiting.pop()
            if isinstance(schema, bool) or id(schema) in seen:
                continue
            seen.add(id(schema))
            own = self._bases.get(id(schema), base)
            yield schema, place, own
            waiting += [(each, at, own) for each, at in children(schema, place, definitions=False)]

    def _follow(self, schema: Schema, base: str) -> Iterator[tuple[Target, str]]:
        for keyword in KEYWORDS:
            if not isinstance(given := schema.get(keyword), str):
                continue
            found = self._resolved(keyword, given, base)
            if found is not None:
                self.targets[id(schema), keyword] = found
                self.referred.add(id(found.schema))
                yield found, base

    def _resolved(self, keyword: str, given: str, base: str) -> Target | None:
        dynamic = self._dynamic.get(given[1:], ()) if keyword == "$dynamicRef" and given.startswith("#") else ()
        if len(dynamic) > 1 or (
            keyword == "$recursiveRef" and len(self._documents) > 1 + isinstance(self.root.get("$id"), str)
        ):
            return None
        document, fragment = urldefrag(_joined(base, given))
        if not fragment:
            return self._documents.get(document)
        if not fragment.startswith("/"):
            return self._anchors.get(f"{document}#{unquote(fragment)}")
        known = self._documents.get(document)
        return None if known is None else _at(known, unquote(fragment))


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return urldefrag(base)[0] + reference
    try:
        return urljoin(base, reference)
    except ValueError:  # an invalid host in brackets
        return reference


def _at(target: Target, pointer: str) -> Target | None:
    """Return the schema at a JSON pointer, or None."""
    found: Any = target.schema
    place = target.place
    for step in pointer[1:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isascii() and key.isdigit() and int(key[:9]) < len(found):
            found, place = found[int(key)], place.at(int(key))
        elif isinstance(found, Mapping) and key in found:
            found, place = found[key], place.at(key)
        else:
            return None
    return Target(found, place) if is_schema(found) else None


_DEPENDING = frozenset({"$dynamicRef", "$recursiveRef", "anyOf", "dependencies", "dependentSchemas", "if", "oneOf"})


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Evaluated properties by name and by pattern; `all`: every property is evaluated."""

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    all: bool


def evaluated(schema: Mapping[str, Any], references: References) -> Evaluated | None:
    """Return the properties that a schema evaluates, apart from its `unevaluatedProperties`. None: which ones depends
    on the value.
    """
    names: dict[str, None] = {}
    patterns: dict[str, None] = {}
    seen: set[int] = set()
    waiting: list[Mapping[str, Any] | bool] = [schema]
    depends = False
    while waiting:
        part = waiting.pop()
        if isinstance(part, bool) or id(part) in seen:
            continue
        seen.add(id(part))
        if "additionalProperties" in part or (part is not schema and "unevaluatedProperties" in part):
            return Evaluated((), (), all=True)
        names |= dict.fromkeys(part.get("properties", ()))
        patterns |= dict.fromkeys(part.get("patternProperties", ()))
        target = references.target(part)
        depends = depends or bool(_DEPENDING & part.keys()) or ("$ref" in part and target is None)
        waiting += part.get("allOf", ())
        if target is not None:
            waiting.append(target.schema)
    return None if depends else Evaluated(tuple(names), tuple(patterns), all=False)
