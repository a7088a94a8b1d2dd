"""Rewrites a JSON Schema of any draft into one that a grammar can enforce, and lists the keywords that it cannot
enforce.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from plimsoll_runtime.engine.protocol.constraint import ConstraintError
from plimsoll_runtime.structured.schemas import containers, logic, scalars
from plimsoll_runtime.structured.schemas.context import Caution, Schema, Site
from plimsoll_runtime.structured.schemas.disjoint import Signatures
from plimsoll_runtime.structured.schemas.problems import Place, Unenforced
from plimsoll_runtime.structured.schemas.references import KEYWORDS, References
from plimsoll_runtime.structured.schemas.types import is_schema

_OLD = re.compile(r"https?://json-schema\.org/draft-0[0-7]/schema#?")
_LATER = frozenset({
    "$anchor",
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveRef",
    "dependentRequired",
    "dependentSchemas",
    "maxContains",
    "minContains",
    "prefixItems",
    "unevaluatedItems",
    "unevaluatedProperties",
})  # fmt: skip
_BESIDE_REFERENCES = frozenset({"$ref", "$defs", "definitions"})
_VALUES = frozenset({"const", "enum", "default", "examples"})
_NAMED = frozenset({"$defs", "definitions", "dependencies", "patternProperties", "properties"})


def of_its_draft(root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document without keywords that its `$schema` does not define, or ignores next to a `$ref`."""
    named = root.get("$schema")
    if not isinstance(named, str) or not _OLD.fullmatch(named):
        return root
    found = _schema(root)
    assert isinstance(found, dict)
    return found


def _schema(value: Any) -> Any:
    if isinstance(value, list):
        return [_schema(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    refers = isinstance(value.get("$ref"), str)
    known = {k: v for k, v in value.items() if k not in _LATER and (not refers or k in _BESIDE_REFERENCES)}
    return {key: _member(key, inner) for key, inner in known.items()}


def _member(key: str, value: Any) -> Any:
    if key in _VALUES:
        return value
    if key in _NAMED and isinstance(value, Mapping):
        return {name: _schema(each) for name, each in value.items()}
    return _schema(value)


_GROUPS: tuple[tuple[Callable[[Site], None], tuple[str, ...]], ...] = (
    (scalars.types, ("type",)),
    (scalars.options, ("const", "enum")),
    (scalars.bounds, ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    (scalars.multiple, ("multipleOf",)),
    (scalars.texts, ("minLength", "maxLength", "pattern", "format")),
    (
        containers.arrays,
        (
            "items",
            "additionalItems",
            "prefixItems",
            "minItems",
            "maxItems",
            "contains",
            "uniqueItems",
            "unevaluatedItems",
        ),
    ),
    (
        containers.objects,
        (
            "properties",
            "patternProperties",
            "additionalProperties",
            "unevaluatedProperties",
            "propertyNames",
            "required",
            "minProperties",
            "maxProperties",
            "dependentRequired",
            "dependentSchemas",
            "dependencies",
        ),
    ),
    (logic.all_of, ("allOf",)),
    (logic.any_of, ("anyOf",)),
    (logic.one_of, ("oneOf",)),
    (logic.negation, ("not",)),
    (logic.condition, ("if",)),
)
_BY_KEYWORD = {keyword: group for group, keywords in _GROUPS for keyword in keywords}
ENFORCED = frozenset({*_BY_KEYWORD, *KEYWORDS})
"""Keywords that are rewritten. Others do not restrict values."""


@dataclass(frozen=True, slots=True)
class Normalised:
    """`schema` is the enforceable schema; `unenforced` lists each keyword of the original that is not enforced, or not
    exactly. `places` maps parts of the result (by identity) to their places in the original.
    """

    schema: dict[str, Any]
    unenforced: tuple[Unenforced, ...] = ()
    places: Mapping[int, Place] = field(default_factory=dict)


def normalise(schema: Any, place: Place | None = None, caution: Caution = Caution.NONE) -> Normalised:
    """Normalise a schema, which may be at a `place` in a larger document. `caution` leaves out keywords that llguidance
    may reject. Raises ConstraintError if it is not a schema, is nested too deeply, or no value satisfies it.

    The result is of draft 2020-12. It has only keywords that `docs/reference/schemas.md` calls enforced, and references
    into its own `$defs`. It accepts every document that the schema accepts; if `unenforced` is empty, it accepts no
    others. Its size and the work are within a constant factor of the schema's: a part that is referred to is written
    once.
    """
    if not is_schema(schema):
        raise ConstraintError(f"a schema must be a JSON object or true, not {str(schema)[:40]}")
    if isinstance(schema, bool):
        if not schema:
            raise ConstraintError("a schema must be a JSON object or true; no value satisfies false")
        return Normalised({})
    try:
        return _Document(of_its_draft(schema), place or Place(), caution).result()
    except RecursionError as error:
        raise ConstraintError("is nested too deeply") from error


@dataclass(slots=True)
class _Document:
    root: Mapping[str, Any]
    place: Place
    caution: Caution
    references: References = field(init=False)
    signatures: Signatures = field(init=False)
    left: list[Unenforced] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)
    definitions: dict[str, Schema] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    waiting: list[tuple[Mapping[str, Any], Place, str]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.references = References(self.root, self.place)
        self.signatures = Signatures(self.references)

    def result(self) -> Normalised:
        """Return the rewritten document. Raises ConstraintError if no document satisfies it."""
        found = self._rewrite(self.root, self.place)
        while self.waiting:
            schema, place, name = self.waiting.pop()
            self.definitions[name] = self._content(schema, place)
        if found is False or self.definitions.get(self.names.get(id(self.root), "")) is False:
            raise ConstraintError("no document satisfies the schema")
        whole: dict[str, Any] = {} if isinstance(found, bool) else dict(found)
        if self.definitions:
            whole["$defs"] = self.definitions
        return Normalised(whole, tuple(self.left), self.places)

    def _rewrite(self, schema: Schema, place: Place) -> Schema:
        """Rewrite a nested schema; if other parts refer to it, return a reference to its definition."""
        if isinstance(schema, bool):
            return schema
        if id(schema) not in self.references.referred:
            return self._content(schema, place)
        name = self.names.get(id(schema))
        if name is None:
            name = self.names[id(schema)] = self._new_name()
            self.waiting.append((schema, place, name))
        return {"$ref": f"#/$defs/{name}"}

    def _new_name(self) -> str:
        return f"d{next(self.numbers)}"

    def _share(self, schema: Schema) -> Schema:
        """Return a rewritten schema in a form that may be repeated: short, or a reference."""
        if isinstance(schema, bool) or schema.keys() <= {"$ref", "type"}:
            return schema
        name = self._new_name()
        self.definitions[name] = schema
        return {"$ref": f"#/$defs/{name}"}

    def _content(self, schema: Mapping[str, Any], place: Place) -> Schema:
        site = Site(schema, place, self._rewrite, self._share, self.signatures, self.left, self.caution)
        done: set[Callable[[Site], None]] = set()
        for keyword in schema:
            if keyword in KEYWORDS:
                self._refer(site, keyword)
                continue
            group = _BY_KEYWORD.get(keyword)
            if group is not None and group not in done:
                done.add(group)
                group(site)
        found = site.result
        if isinstance(found, dict):
            self.places[id(found)] = place
        return found

    def _refer(self, site: Site, keyword: str) -> None:
        target = self.references.targets.get((id(site.given), keyword))
        if target is None:
            site.leave(keyword)
        elif isinstance(target.schema, bool):
            site.also(target.schema)
        else:
            found = self._rewrite(target.schema, target.place)
            assert isinstance(found, Mapping)
            if "$ref" in site.out:
                site.also(found)
            else:
                site.out["$ref"] = found["$ref"]
