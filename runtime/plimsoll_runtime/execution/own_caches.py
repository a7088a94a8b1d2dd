"""The caches of sequences whose decoder keeps them by itself, in Transformers' own form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from plimsoll_runtime.models.layers.states import Spans
from plimsoll_runtime.models.transformers_code.cache_calls import Findings
from plimsoll_runtime.models.transformers_code.cache_rows import OwnStep, Rows


class OwnCaches:
    """A row for each slot of the runner, from the sequence's first token until its slot is free again."""

    def __init__(self, found: Findings) -> None:
        self.rows = Rows(None if found.axes is None else dict(found.axes))

    def begin(self, slots: Sequence[int], lengths: Sequence[int], positions: Tensor) -> OwnStep:
        """A step of sequences in these slots, with so many rows each; `positions` int64 [T] of all rows."""
        first, starts, every = 0, [], positions.tolist()
        for length in lengths:
            starts.append(every[first])
            first += length
        return OwnStep(slots, starts, Spans(lengths, positions.device), self.rows)

    def free(self, slots: Iterable[int]) -> None:
        """These slots are nobody's: their caches go."""
        self.rows.free(slots)
