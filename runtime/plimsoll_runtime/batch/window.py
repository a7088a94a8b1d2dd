"""In which order rows are asked: within a window those side by side that begin alike, the longest first.

What begins alike finds its prefix in the cache; what takes longest begins first, so that it is not what everything ends
with. The answers' order is another matter: the store keeps it.

Rows are read while others are asked, so that nobody waits until a window is full: the first is small, and each may have
twice the rows of the one before it.
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
FIRST = 16
"""How many times smaller the first window is."""
READ_AHEAD = 2
"""Rows of the next window that are read with each row that is asked."""


def windows(rows: Iterable[Row], most: Window = WIDE) -> Iterator[Row]:
    """All rows, sorted within windows."""
    source = iter(rows)
    first = Window(-(-most.rows // FIRST), -(-most.bytes // FIRST))
    ahead = _Growing(source, first)
    ahead.read(first.rows)
    while ahead.rows:
        window, ahead = arranged(ahead.rows), _Growing(source, most)
        for row in window:
            yield row
            ahead.read(READ_AHEAD)


class _Growing:
    """A window that is being read."""

    def __init__(self, source: Iterator[Row], most: Window) -> None:
        self.rows: list[Row] = []
        self._source = source
        self._most = most
        self._size = 0

    def read(self, count: int) -> None:
        """So many rows more, as far as there are some and they fit in."""
        for _ in range(count):
            if len(self.rows) >= self._most.rows or self._size >= self._most.bytes:
                return
            if (row := next(self._source, None)) is None:
                return
            self.rows.append(row)
            self._size += len(row.data)


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
