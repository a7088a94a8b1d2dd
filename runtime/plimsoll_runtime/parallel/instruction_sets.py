"""The CPU instruction set of a parallel group whose members may have different processors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Sets = Sequence[str]
"""The instruction sets of a member, from the least to the best. Empty if the CPU kernels do not compute there."""


@dataclass(frozen=True, slots=True)
class GroupSet:
    """The instruction set that all ranks compute with; `name` is None if the members have none in common.

    `best`: the best set of each member that has one, by its index.
    """

    name: str | None = None
    best: tuple[tuple[int, str], ...] = ()

    @property
    def difference(self) -> str:
        """A sentence with the group's set and those of its members; empty if all members have the same."""
        members: dict[str, list[int]] = {}
        for index, best in self.best:
            members.setdefault(best, []).append(index)
        if self.name is None or len(members) < 2:
            return ""
        each = ", ".join(f"{best} on {named(indexes)}" for best, indexes in members.items())
        return f"the group computes with {self.name}, the least of its members: {each}"

    def __str__(self) -> str:
        if self.name is None:
            return "the members of the group have no instruction set in common, so each rank chooses its own"
        return self.difference or f"the group computes with {self.name}, the best instruction set of all its members"


def group_set(members: Mapping[int, Sets]) -> GroupSet:
    """Return the best instruction set that all members have. `members`: the sets of each, by index.

    The name is one of the first member's own names, whatever the others have sent.
    """
    first, *others = members.values()
    name = next((each for each in reversed(first) if all(each in sets for sets in others)), None)
    return GroupSet(name, tuple((index, sets[-1]) for index, sets in sorted(members.items()) if sets))


def named(members: Sequence[int]) -> str:
    """Return "member 1" or "members 1, 2"."""
    return f"member{'s' if len(members) > 1 else ''} {', '.join(map(str, members))}"
