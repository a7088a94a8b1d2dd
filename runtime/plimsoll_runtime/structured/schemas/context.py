"""The state of one schema while it is rewritten."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from plimsoll_runtime.structured.schemas.disjoint import Signatures
from plimsoll_runtime.structured.schemas.problems import REASONS, Place, Unenforced
from plimsoll_runtime.structured.schemas.types import kind_of, kinds_of

Schema = Mapping[str, Any] | bool


class Caution(IntEnum):
    """Which keywords are left unenforced because llguidance rejects them in some schemas, which cannot be predicted.
    COUNTS: minProperties, maxProperties, and patternProperties with several patterns. REFERENCES: also keywords next to
    a reference.
    """

    NONE = 0
    COUNTS = 1
    REFERENCES = 2


@dataclass(slots=True)
class Site:
    """One schema being rewritten: `given` at `place` becomes `out`; `more` are further schemas that must hold as well.

    `rewrite` rewrites a nested schema, `share` turns a schema that is used several times into a definition, and `left`
    lists what cannot be enforced.
    """

    given: Mapping[str, Any]
    place: Place
    rewrite: Callable[[Schema, Place], Schema]
    share: Callable[[Schema], Schema]
    signatures: Signatures
    left: list[Unenforced]
    caution: Caution
    out: dict[str, Any] = field(default_factory=dict)
    more: list[Schema] = field(default_factory=list)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of values that the schema's type and listed values allow."""
        found = kinds_of(self.given.get("type"))
        if "const" in self.given:
            return found & {kind_of(self.given["const"])}
        if "enum" in self.given:
            return found & frozenset(map(kind_of, self.given["enum"]))
        return found

    def inner(self, value: Schema, *keys: str | int) -> Schema:
        """Return a nested schema, rewritten. `keys` are its path in this schema."""
        return self.rewrite(value, self.place.at(*keys))

    def exactly(self, value: Schema, *keys: str | int) -> Schema | None:
        """Return a nested schema, rewritten; None if some of it cannot be enforced, and then `left` stays unchanged."""
        before = len(self.left)
        found = self.inner(value, *keys)
        if len(self.left) == before:
            return found
        del self.left[before:]
        return None

    def leave(self, keyword: str, reason: str | None = None, place: Place | None = None) -> None:
        """Record that a keyword is not enforced."""
        self.left.append(Unenforced(place or self.place, keyword, reason or REASONS[keyword]))

    def also(self, schema: Schema | None) -> None:
        """Add a schema that must hold as well."""
        if schema is not None and schema is not True and schema != {}:
            self.more.append(schema)

    def is_alone(self, *keywords: str) -> bool:
        """Return whether the schema has no keyword that applies further schemas to the same value (`$ref`, `allOf`,
        ...), except `keywords`.
        """
        return not (_IN_PLACE - set(keywords)) & self.given.keys()

    @property
    def result(self) -> Schema:
        """The rewritten schema. False: no value satisfies it."""
        members = [*self.out.pop("allOf", ()), *self.more]
        if any(member is False for member in members):
            return False
        if self.caution >= Caution.REFERENCES and "$ref" in self.out and (members or len(self.out) > 1):
            self.leave("$ref", "other keywords are next to it, and it refers to a schema that it is a part of")
            return {"$ref": self.out["$ref"]}
        if members:
            self.out["allOf"] = members
        return self.out or True


_IN_PLACE = frozenset({
    "$dynamicRef",
    "$recursiveRef",
    "$ref",
    "allOf",
    "anyOf",
    "dependencies",
    "dependentSchemas",
    "else",
    "if",
    "not",
    "oneOf",
    "then",
})  # fmt: skip
