"""In which order rows are asked: within a window those side by side that begin alike, the longest first.

What begins alike finds its prefix in the cache; what takes longest begins first, so that it is not what everything ends
with. The answers' order is another matter: the store keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from plimsoll_runtime.batch.row import Row

_PROMPTS = (b'"messages"', b'"prompt"', b'"input"')
_HEAD = 1024
SHARED = 160
"""Bytes that rows have in common to stand side by side. Some 60 are JSON that all have; a block of the cache holds 16
tokens, as a rule some 64 bytes."""


class Window(NamedTuple):
    """How much is sorted at a time, whichever is reached first."""

    rows: int
    bytes: int


WIDE = Window(4096, 16 * 2**20)


def windows(rows: Iterable[Row], most: Window = WIDE) -> Iterator[Row]:
    """All rows, sorted within windows."""
    window: list[Row] = []
    size = 0
    for row in rows:
        window.append(row)
        size += len(row.data)
        if len(window) >= most.rows or size >= most.bytes:
            yield from arranged(window)
            window, size = [], 0
    yield from arranged(window)


def arranged(rows: Sequence[Row]) -> list[Row]:
    """The rows of one window in the order in which they are asked."""
    ordered = sorted(((_head(row.data), row) for row in rows), key=lambda pair: pair[0])
    heads = [head for head, _ in ordered]
    company = iter(_companies(heads))
    groups = [[row for _, row in group] for _, group in groupby(ordered, lambda _: next(company))]
    for group in groups:
        group.sort(key=_longest_first)
    groups.sort(key=lambda group: _longest_first(group[0]))
    return [row for group in groups for row in group]


def _companies(heads: Sequence[bytes]) -> Iterator[int]:
    """For each of the sorted heads the number of its group."""
    group = 0
    for index, head in enumerate(heads):
        if index and (len(head) < SHARED or heads[index - 1][:SHARED] != head[:SHARED]):
            group += 1
        yield group


def _head(data: bytes) -> bytes:
    """How the prompt begins, as it stands in the JSON."""
    at = min((found for marker in _PROMPTS if (found := data.find(marker)) >= 0), default=0)
    return data[at : at + _HEAD]


def _longest_first(row: Row) -> tuple[int, int]:
    return -len(row.data), row.index
