"""What the grammar library says of a schema, in words of our own and with the place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from plimsoll_runtime.structured.schemas.normalise import Normalised
from plimsoll_runtime.structured.schemas.place import Place
from plimsoll_runtime.structured.schemas.unenforced import REASONS

TOO_MUCH = "takes too much work to compile: it is nested too deeply, or has too many rules, references or repetitions"
NOTHING = "no value satisfies it"
_OF_SCHEMA = re.compile(r"at \d+\(\d+\): failed to compile JSON schema: (.*)", re.DOTALL)
_WORDS = (
    ("nsatisfiable", NOTHING),
    ("Regex is empty", NOTHING),
    ("not disjoint", REASONS["patternProperties"]),
    ("circular references", "it refers to a schema that it is a part of: leave out what stands beside the reference"),
    ("min/maxProperties", REASONS["minProperties"]),
    ("range", REASONS["minimum"]),
    ("egex", "it has a pattern that cannot be enforced: write it without"),
)
_MOST_TRIES = 48


def in_our_words(message: str) -> str | None:
    """None for what was not said of a schema."""
    found = _OF_SCHEMA.match(message)
    if found is None:
        return None
    return next((words for sign, words in _WORDS if sign in found[1]), TOO_MUCH)


def failing(schema: Normalised, compiles: Callable[[dict[str, Any]], bool]) -> Place | None:
    """The smallest part of a schema that does not compile alone, within a bound of tries; None where that is all of it,
    or stands nowhere in the original.
    """
    definitions: dict[str, Any] = schema.schema.get("$defs", {})
    place, tries, seen = None, 0, set[str]()
    waiting = _parts(schema.schema)
    while (part := next(waiting, None)) is not None and tries < _MOST_TRIES:
        name = part.get("$ref", "")[len("#/$defs/") :]
        if name in seen:
            continue
        tries += 1
        if compiles({**part, "$defs": definitions}):
            continue
        seen |= {name} if name else set()
        inner = definitions.get(name, part)
        place = schema.places.get(id(inner), place)
        waiting = _parts(inner) if isinstance(inner, Mapping) else iter(())
    return place


def _parts(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schemas right within one."""
    for keyword, value in schema.items():
        if keyword == "$ref":
            yield {"$ref": value}
        elif keyword in ("properties", "patternProperties"):
            yield from (each for each in value.values() if isinstance(each, Mapping))
        elif keyword in ("allOf", "anyOf", "prefixItems"):
            yield from (each for each in value if isinstance(each, Mapping))
        elif keyword in ("items", "additionalProperties") and isinstance(value, Mapping):
            yield value
