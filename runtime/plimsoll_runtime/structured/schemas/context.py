"""One schema while it is rewritten."""

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
    """What is left out that the library enforces in some schemas, and refuses in others that cannot be told apart here:
    numbers of properties and several patterns of names, then what stands next to a reference, too.
    """

    NONE = 0
    COUNTS = 1
    REFERENCES = 2


@dataclass(slots=True)
class Site:
    """`given` stands at `place`; `out` is what comes of it, `more` are further schemas that hold together with it.
    `rewrite` rewrites a schema within it, `share` makes one that stands in several places a definition, and what cannot
    be enforced is put on the list `left`.
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
        """The kinds of values that its own type and values leave."""
        found = kinds_of(self.given.get("type"))
        if "const" in self.given:
            return found & {kind_of(self.given["const"])}
        if "enum" in self.given:
            return found & frozenset(map(kind_of, self.given["enum"]))
        return found

    def inner(self, value: Schema, *keys: str | int) -> Schema:
        """A schema within it, rewritten."""
        return self.rewrite(value, self.place.at(*keys))

    def exactly(self, value: Schema, *keys: str | int) -> Schema | None:
        """The same; None where not all of it can be enforced, and then nothing of it is on the list."""
        before = len(self.left)
        found = self.inner(value, *keys)
        if len(self.left) == before:
            return found
        del self.left[before:]
        return None

    def leave(self, keyword: str, reason: str | None = None, place: Place | None = None) -> None:
        """A keyword is not enforced."""
        self.left.append(Unenforced(place or self.place, keyword, reason or REASONS[keyword]))

    def also(self, schema: Schema | None) -> None:
        """A further schema holds."""
        if schema is not None and schema is not True and schema != {}:
            self.more.append(schema)

    def is_alone(self, *keywords: str) -> bool:
        """Whether no other schemas hold in its place, but those of these keywords."""
        return not (_IN_PLACE - set(keywords)) & self.given.keys()

    @property
    def result(self) -> Schema:
        """What came of it. False: no value satisfies it."""
        members = [*self.out.pop("allOf", ()), *self.more]
        if any(member is False for member in members):
            return False
        if self.caution >= Caution.REFERENCES and "$ref" in self.out and (members or len(self.out) > 1):
            self.leave("$ref", "other keywords stand next to it, and it refers to a schema that it is a part of")
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
