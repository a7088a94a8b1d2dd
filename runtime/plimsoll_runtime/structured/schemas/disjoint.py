"""Shows that two schemas have no value in common, from properties that all values of a schema have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from plimsoll_runtime.structured.schemas.references import References, Schema
from plimsoll_runtime.structured.schemas.types import ALL, canonical, kind_of, kinds_of

MOST_PAIRS = 64
"""Maximum number of branches compared pairwise: 2,016 pairs."""
MOST_WORK = 300_000
"""Maximum number of names and values examined for one document: about a tenth of a second."""
_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Signature:
    """Properties of all values of a schema.

    Every value is of one of the `kinds` and, unless None, one of `values` (canonical texts). A number is from `low` to
    `high`. An object has the `required` names, its properties have the signatures in `properties`, and unless `closed`
    is None it has no other names than `closed`. No kinds: no value.
    """

    kinds: frozenset[str] = ALL
    values: frozenset[str] | None = None
    low: float = -math.inf
    high: float = math.inf
    required: frozenset[str] = frozenset()
    properties: Mapping[str, Signature] = field(default_factory=dict)
    closed: frozenset[str] | None = None

    @property
    def size(self) -> int:
        """Number of its names and values."""
        sets = (self.values, self.closed, self.required, self.properties)
        return 1 + sum(len(each) for each in sets if each is not None)


ANYTHING = Signature()
NOTHING = Signature(kinds=frozenset())


@dataclass(slots=True)
class Signatures:
    """Signatures of one document's schemas, each computed once. A recursive schema counts as any value, and so does
    every schema after `MOST_WORK`, so that nothing more is shown to be disjoint.
    """

    references: References
    _known: dict[int, Signature] = field(default_factory=dict)
    _work: int = 0

    def of(self, schema: Schema | bool, depth: int = 0) -> Signature:
        """Return the signature of one of the document's schemas."""
        if isinstance(schema, bool):
            return ANYTHING if schema else NOTHING
        found = self._known.get(id(schema))
        if found is None:
            if depth > _DEPTH:
                return ANYTHING
            self._known[id(schema)] = ANYTHING
            found = self._known[id(schema)] = self._made(schema, depth + 1)
        return found

    def all_disjoint(self, schemas: Sequence[Schema | bool]) -> bool:
        """Return whether certainly no value satisfies two of the schemas. More than MOST_PAIRS schemas are compared
        only by their listed values, or by those of one required property.
        """
        signatures = [self.of(schema) for schema in schemas]
        if self._by_values(signatures):
            return True
        if len(signatures) > MOST_PAIRS:
            return False
        return all(self._disjoint(one, two) for at, one in enumerate(signatures) for two in signatures[at + 1 :])

    def disjoint(self, one: Schema | bool, two: Schema | bool) -> bool:
        """Return whether certainly no value satisfies both schemas."""
        return self._disjoint(self.of(one), self.of(two))

    def _made(self, schema: Schema, depth: int) -> Signature:
        found = self._own(schema, depth)
        target = self.references.target(schema)
        if target is not None:
            found = self._both(found, self.of(target.schema, depth))
        for member in schema.get("allOf", ()):
            found = self._both(found, self.of(member, depth))
        for key in ("anyOf", "oneOf"):
            if key in schema:
                union = NOTHING
                for branch in schema[key]:
                    union = self._either(union, self.of(branch, depth))
                found = self._both(found, union)
        return found

    def _own(self, schema: Schema, depth: int) -> Signature:
        kinds, values = kinds_of(schema.get("type")), None
        options = [schema["const"]] if "const" in schema else schema.get("enum")
        if options is not None:
            options = [option for option in options if kind_of(option) in kinds]
            kinds &= frozenset(map(kind_of, options))
            values = frozenset(map(canonical, options))
        found = Signature(kinds, values, *_bounds(schema))
        return replace(found, **self._names(schema, depth)) if "object" in kinds else found

    def _names(self, schema: Schema, depth: int) -> dict[str, Any]:
        given = schema.get("properties", {})
        closes = schema.get("additionalProperties") is False and not schema.get("patternProperties")
        return {
            "required": frozenset(schema.get("required", ())),
            "properties": {name: self.of(inner, depth) for name, inner in given.items()},
            "closed": frozenset(given) if closes else None,
        }

    def _is_too_much(self, *signatures: Signature) -> bool:
        self._work += sum(one.size for one in signatures)
        return self._work > MOST_WORK

    def _both(self, one: Signature, two: Signature) -> Signature:
        """Return the signature of values that have both signatures."""
        if self._is_too_much(one, two):
            return ANYTHING
        properties = dict(one.properties)
        for name, signature in two.properties.items():
            properties[name] = self._both(properties[name], signature) if name in properties else signature
        low, high = max(one.low, two.low), min(one.high, two.high)
        values, closed = _common(one.values, two.values), _common(one.closed, two.closed)
        return Signature(one.kinds & two.kinds, values, low, high, one.required | two.required, properties, closed)

    def _either(self, one: Signature, two: Signature) -> Signature:
        """Return the signature of values that have one of the signatures."""
        if not one.kinds or not two.kinds:
            return two if not one.kinds else one
        if self._is_too_much(one, two):
            return ANYTHING
        values = None if one.values is None or two.values is None else one.values | two.values
        low, high = min(one.low, two.low), max(one.high, two.high)
        found = Signature(one.kinds | two.kinds, values, low, high)
        objects = [each for each in (one, two) if "object" in each.kinds]
        if not objects:
            return found
        first, last = objects[0], objects[-1]
        shared = first.properties.keys() & last.properties.keys()
        return replace(
            found,
            required=first.required & last.required,
            properties={name: self._either(first.properties[name], last.properties[name]) for name in shared},
            closed=None if first.closed is None or last.closed is None else first.closed | last.closed,
        )

    def _disjoint(self, one: Signature, two: Signature) -> bool:
        if self._is_too_much(one, two):
            return False
        shared = one.kinds & two.kinds
        if not shared:
            return True
        if one.values is not None and two.values is not None:
            return not one.values & two.values
        if shared <= {"integer", "fraction"}:
            return one.high < two.low or two.high < one.low
        if shared != {"object"}:
            return False
        needed = one.required | two.required
        if any(closed is not None and not needed <= closed for closed in (one.closed, two.closed)):
            return True
        return any(
            self._disjoint(one.properties.get(name, ANYTHING), two.properties.get(name, ANYTHING)) for name in needed
        )

    def _by_values(self, signatures: Sequence[Signature], *, deeper: bool = True) -> bool:
        if self._is_too_much(*signatures):
            return False
        values = [one.values for one in signatures if one.values is not None]
        if len(values) == len(signatures):
            return len(frozenset().union(*values)) == sum(map(len, values))
        if not deeper or any(one.kinds != {"object"} for one in signatures):
            return False
        names = sorted(frozenset.intersection(*(one.required for one in signatures)))
        return any(
            self._by_values([one.properties.get(name, ANYTHING) for one in signatures], deeper=False)
            for name in names[:8]
        )


def _common(one: frozenset[str] | None, two: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or two is None:
        return two if one is None else one
    return one & two


def _bounds(schema: Schema) -> tuple[float, float]:
    """Return the lowest and highest number; exclusive bounds count as inclusive."""
    lows, highs = (
        [schema[key] for key in keys if key in schema and not isinstance(schema[key], bool)]
        for keys in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
    )
    return max(lows, default=-math.inf), min(highs, default=math.inf)
