"""The fewest of what is sorted by worth that make enough room."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plimsoll_operator.placement.ledger import Slot


def fewest(ordered: Sequence[Slot], room: int, held: Callable[[Slot], int]) -> tuple[Slot, ...] | None:
    """The first ones that hold so many bytes together, less those that turn out not to be needed."""
    chosen: list[Slot] = []
    found = 0
    for slot in ordered:
        if found >= room:
            break
        chosen.append(slot)
        found += held(slot)
    if found < room:
        return None
    for slot in reversed(chosen[:-1]):
        if found - held(slot) >= room:
            chosen.remove(slot)
            found -= held(slot)
    return tuple(chosen)
