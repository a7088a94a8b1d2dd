"""Keywords of a schema that a grammar cannot enforce, and their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_runtime.engine.protocol.constraint import ConstraintError

MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a part of a schema: `key`, a key of an object or an index of a list, in the part at `outer`. The
    position of the whole document has no `outer`.
    """

    outer: Place | None = None
    key: str | int = ""

    def at(self, *keys: str | int) -> Place:
        """Return the place of a nested part."""
        found = self
        for key in keys:
            found = Place(found, key)
        return found

    @property
    def pointer(self) -> str:
        """The place as a JSON pointer (RFC 6901)."""
        steps: list[str] = []
        here: Place | None = self
        while here is not None and here.outer is not None:
            steps.append("/" + str(here.key).replace("~", "~0").replace("/", "~1"))
            here = here.outer
        return "".join(reversed(steps))

    @property
    def shown(self) -> str:
        """The pointer for messages, shortened in the middle if it is long."""
        found = self.pointer
        half = MOST_SHOWN // 2
        return found if len(found) <= MOST_SHOWN else f"{found[:half]}...{found[-half:]}"


MOST_DEPENDENCIES = 6
"""Limit for one object, because each dependency doubles the number of cases in a grammar."""
_CHECK = "leave it out and check the output"
_DEPENDENCIES = (
    f"at most {MOST_DEPENDENCIES} dependencies of an object can be enforced: use anyOf with a branch for each case"
)
REASONS = {
    "oneOf": "its branches may overlap: give each a required property with a constant of its own, or use anyOf",
    "uniqueItems": f"unique items cannot be enforced: {_CHECK}",
    "not": f"it cannot be enforced here: list the allowed values instead, or {_CHECK}",
    "if": f"it cannot be enforced here: use anyOf with a branch for each case, or {_CHECK}",
    "contains": f"it cannot be enforced: {_CHECK}",
    "propertyNames": "it cannot be enforced here: use patternProperties with additionalProperties false",
    "patternProperties": "its patterns may overlap: let no name match two of them",
    "additionalProperties": (
        "it cannot be enforced, because patternProperties cannot be enforced completely: correct or remove patterns"
    ),
    "dependentRequired": _DEPENDENCIES,
    "dependentSchemas": _DEPENDENCIES,
    "dependencies": _DEPENDENCIES,
    "unevaluatedProperties": "it cannot be enforced here: use additionalProperties in each branch",
    "unevaluatedItems": "it cannot be enforced here: use items, or maxItems",
    "minProperties": "it cannot be enforced with optional properties: make them required",
    "maxProperties": "it cannot be enforced with optional properties: leave some out",
    "multipleOf": "it has too many digits to be enforced: use a number of at most 9 digits",
    "const": "it has a number that a double cannot represent: use a text",
    "enum": "it has a number that a double cannot represent: use texts",
    "$ref": "it refers to something outside the schema: move the target into $defs",
    "$dynamicRef": "its target is ambiguous: use $ref",
    "$recursiveRef": "its target is ambiguous: use $ref",
}
for _bound in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
    REASONS[_bound] = "it is too large, or a double cannot represent it: use a bound of at most 15 digits, or none"


@dataclass(frozen=True, slots=True)
class Unenforced:
    """`keyword` of the schema at `place`; `reason` says why, and what to write instead."""

    place: Place
    keyword: str
    reason: str

    @property
    def pointer(self) -> str:
        """The JSON pointer of the keyword."""
        return self.place.at(self.keyword).pointer


def refuse(found: Sequence[Unenforced]) -> None:
    """Raise ConstraintError if the list is not empty."""
    if not found:
        return
    more = f" (and {len(found) - 1} more places)" if len(found) > 1 else ""
    first = found[0]
    raise ConstraintError(f"at '{first.place.at(first.keyword).shown}': {first.reason}{more}")
