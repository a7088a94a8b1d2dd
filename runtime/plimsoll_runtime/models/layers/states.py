"""The recurrent states of a step as a decoder sees them, and the rows of a step by sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_runtime.models.layers.device_copy import to_device


@dataclass(frozen=True, slots=True)
class Wave:
    """The next rows of B sequences, at most `length` of each; shorter ones are padded.

    `sequences` int64 [B]; `rows` int64 [B, length], where each lies among the T rows of a step, any one in padding;
    `padding` bool [B, length], None where there is none; `held` int64: those of B x length that are not padding.
    """

    length: int
    sequences: Tensor
    rows: Tensor
    padding: Tensor | None
    held: Tensor | None

    def take(self, values: Tensor) -> Tensor:
        """[T, ...] -> [B, length, ...], zero in padding, whatever the rows hold that stand in for it."""
        taken = values.index_select(0, self.rows.flatten()).view(*self.rows.shape, *values.shape[1:])
        if self.padding is None:
            return taken
        return taken.masked_fill_(self.padding.view(*self.padding.shape, *[1] * (values.dim() - 1)), 0)

    def put(self, result: Tensor, values: Tensor) -> None:
        """Copy values [B, length, ...] to where they belong in a result [T, ...]."""
        rows, flat = self.rows.flatten(), values.flatten(0, 1)
        if self.held is not None:
            rows, flat = rows[self.held], flat[self.held]
        result.index_copy_(0, rows, flat)


@dataclass(frozen=True, slots=True)
class Window:
    """T rows with `width` rows before each sequence's first, one after the other.

    int64: where the rows before lie there (S x width), where the T rows lie, and where the last `width` rows of each
    sequence do (S x width).
    """

    width: int
    before: Tensor
    rows: Tensor
    last: Tensor


class Spans:
    """The sequences of a step, whose rows lie one after the other: `lengths` of them, each at least 1.

    `alone`: each has one row. Then nothing here makes a tensor.

    No Python runs for each row or sequence: recurrent layers take sequences in waves, all that have rows left together,
    and convolutions take all rows at once.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.lengths = lengths
        self.alone = sum(lengths) == len(lengths)
        self._device = device
        self._lengths = np.asarray(lengths, dtype=np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._waves: dict[int, Sequence[Wave]] = {}
        self._windows: dict[int, Window] = {}

    def waves(self, size: int) -> Sequence[Wave]:
        """Every row once, a sequence's in order: first sequences of one row, then at most `size` rows of each other."""
        if size not in self._waves:
            single = np.flatnonzero(self._lengths == 1)
            longer = np.flatnonzero(self._lengths > 1)
            found = [self._wave(single, 0, 1)] if single.size else []
            for first in range(0, int(self._lengths.max()), size) if longer.size else ():
                going = longer[self._lengths[longer] > first]
                found.append(self._wave(going, first, int(min(size, self._lengths[going].max() - first))))
            self._waves[size] = found
        return self._waves[size]

    def window(self, width: int) -> Window:
        """The rows with so many before each sequence."""
        if width not in self._windows:
            count = len(self._lengths)
            starts = self._starts + width * np.arange(count)
            offsets = np.arange(width)
            rows = np.arange(int(self._lengths.sum())) + np.repeat(width * (np.arange(count) + 1), self._lengths)
            self._windows[width] = Window(
                width,
                self._tensor((starts[:, None] + offsets).reshape(-1)),
                self._tensor(rows),
                self._tensor((starts[:, None] + self._lengths[:, None] + offsets).reshape(-1)),
            )
        return self._windows[width]

    def _wave(self, sequences: NDArray[np.int64], first: int, length: int) -> Wave:
        columns = first + np.arange(length)
        padding = columns >= self._lengths[sequences][:, None]
        rows = np.where(padding, 0, self._starts[sequences][:, None] + columns)
        if not padding.any():
            return Wave(length, self._tensor(sequences), self._tensor(rows), None, None)
        held = self._tensor(np.flatnonzero(~padding.reshape(-1)))
        return Wave(length, self._tensor(sequences), self._tensor(rows), self._tensor(padding), held)

    def _tensor(self, array: NDArray[np.int64] | NDArray[np.bool_]) -> Tensor:
        return to_device(np.ascontiguousarray(array), self._device)


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
