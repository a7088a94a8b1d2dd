"""The tokens that the queries of an attention layer see, and their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Visible(msgspec.Struct, frozen=True, array_like=True):
    """The mask of an attention layer. See `AttentionShape` for the fields."""

    window: int | None = None
    chunk: int | None = None
    whole: bool = False

    def first_seen(self, position: int) -> int:
        """Return the first position that a query sees, if the layer caches keys."""
        first = 0 if self.window is None else max(0, position - self.window + 1)
        return first if self.chunk is None else max(first, position // self.chunk * self.chunk)

    def of_spans(self, spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return (tokens, pairs) for queries at the positions (first, end) of each sequence.

        `tokens`: the tokens that they attend to, each counted once a sequence. `pairs`: the pairs of a query and a
        token that it attends to.
        """
        if self.whole:
            counts = [end - start for start, end in spans]
            return sum(counts), sum(n * min(n, n if self.window is None else 2 * self.window - 1) for n in counts)
        tokens = sum(end - self.first_seen(start) for start, end in spans)
        return tokens, sum(self._pairs(end) - self._pairs(start) for start, end in spans)

    def of_decodes(self, positions: Sequence[int]) -> int:
        """Return the tokens that queries of different sequences attend to, one at each position. These are also the
        pairs.
        """
        if self.whole:
            return len(positions)
        if self.window is None and self.chunk is None:
            return sum(positions) + len(positions)
        size = min(each for each in (self.window, self.chunk) if each is not None)
        if max(positions) < size:
            return sum(positions) + len(positions)
        if self.chunk is None and min(positions) + 1 >= size:
            return len(positions) * size
        return sum(position + 1 - self.first_seen(position) for position in positions)

    def _pairs(self, end: int) -> int:
        """Return the pairs for queries at positions 0 .. end - 1. Each query attends to its own token."""
        whole, rest = (0, end) if self.chunk is None else divmod(end, self.chunk)
        return whole * self._pairs_of_chunk(self.chunk or 0) + self._pairs_of_chunk(rest)

    def _pairs_of_chunk(self, end: int) -> int:
        window = end if self.window is None else self.window
        growing = min(end, window)
        return growing * (growing + 1) // 2 + (end - growing) * window


def experts_read(experts: int, chosen: int, rows: int) -> float:
    """Return how many of `experts` are read if each of `rows` rows chooses `chosen` of them at random."""
    return experts * (1.0 - (1.0 - chosen / experts) ** rows)
