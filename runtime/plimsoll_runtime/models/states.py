"""A step's recurrent states, as a decoder sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from plimsoll_runtime.models.spans import Spans


class States(Protocol):
    """What `Facts.states` lists, of the S sequences of one step.

    Nothing that is written is kept until the whole pass is over: one that breaks off may be computed again.
    """

    @property
    def spans(self) -> Spans:
        """Which rows belong to which sequence."""

    def read(self, index: int) -> Tensor:
        """A state before the step, [S, ...], zero of sequences that begin with it; the caller may overwrite it."""

    def write(self, index: int, states: Tensor) -> None:
        """A state after the step, [S, ...]."""


Scan = Callable[[Sequence[Tensor], Tensor], tuple[Tensor, Tensor]]
"""(values [B, Q, ...] of Q rows each, states [B, ...] before them) -> (results [B, Q, ...], states after them).

Rows of zeros may follow a sequence's own: they must leave its state as it is.
"""


def scanned(states: States, index: int, size: int, scan: Scan, values: Sequence[Tensor]) -> Tensor:
    """Values [T, ...] -> results [T, ...], by a scan that takes at most `size` rows of a sequence at a time."""
    before = states.read(index)
    if states.spans.alone:
        result, after = scan([value.unsqueeze(1) for value in values], before)
        states.write(index, after)
        return result.squeeze(1)
    results: Tensor | None = None
    for wave in states.spans.waves(size):
        taken = [wave.take(value) for value in values]
        result, after = scan(taken, before.index_select(0, wave.sequences))
        before.index_copy_(0, wave.sequences, after.to(before.dtype))
        if results is None:
            results = result.new_empty(values[0].shape[0], *result.shape[2:])
        wave.put(results, result)
    states.write(index, before)
    assert results is not None
    return results
