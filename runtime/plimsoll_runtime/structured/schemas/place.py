"""Where a part of a schema stands."""

from __future__ import annotations

from dataclasses import dataclass

MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Place:
    """A key of an object, or an index of a list, in the part at `outer`; the whole document has neither."""

    outer: Place | None = None
    key: str | int = ""

    def at(self, *keys: str | int) -> Place:
        """A part of this one."""
        found = self
        for key in keys:
            found = Place(found, key)
        return found

    @property
    def pointer(self) -> str:
        """As a JSON pointer (RFC 6901)."""
        steps: list[str] = []
        here: Place | None = self
        while here is not None and here.outer is not None:
            steps.append("/" + str(here.key).replace("~", "~0").replace("/", "~1"))
            here = here.outer
        return "".join(reversed(steps))

    @property
    def shown(self) -> str:
        """The pointer as messages have it, which may be cut in the middle."""
        found = self.pointer
        half = MOST_SHOWN // 2
        return found if len(found) <= MOST_SHOWN else f"{found[:half]}...{found[-half:]}"
