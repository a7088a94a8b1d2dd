"""Copies of blocks, as few as their numbers allow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Run(NamedTuple):
    """Blocks that lie one behind the other where they come from, and where they go to."""

    source: int
    target: int
    length: int


def runs(pairs: Iterable[tuple[int, int]]) -> list[Run]:
    """(source, target) of single blocks as runs, in any order. Of several sources of one target the last counts."""
    found: list[Run] = []
    sources = {target: source for source, target in pairs}
    for offset, source in sorted((target - source, source) for target, source in sources.items()):
        last = found[-1] if found else None
        if last is not None and last.target - last.source == offset and last.source + last.length == source:
            found[-1] = last._replace(length=last.length + 1)
        else:
            found.append(Run(source, source + offset, 1))
    return found
