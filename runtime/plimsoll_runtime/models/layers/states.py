"""Recurrent states of a step as a decoder uses them, and the rows of each sequence in a step."""

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
    """The next rows of B sequences, at most `length` of each, padded to equal length.

    - `sequences` int64 [B]: the numbers of the sequences in the step.
    - `rows` int64 [B, length]: indices into the step's T rows; arbitrary in padding.
    - `padding` bool [B, length], or None without padding.
    - `held` int64: flat indices of the entries that are not padding; None without padding.
    """

    length: int
    sequences: Tensor
    rows: Tensor
    padding: Tensor | None
    held: Tensor | None

    def take(self, values: Tensor) -> Tensor:
        """Return values [T, ...] as [B, length, ...], with zeros in padding."""
        taken = values.index_select(0, self.rows.flatten()).view(*self.rows.shape, *values.shape[1:])
        if self.padding is None:
            return taken
        return taken.masked_fill_(self.padding.view(*self.padding.shape, *[1] * (values.dim() - 1)), 0)

    def put(self, result: Tensor, values: Tensor) -> None:
        """Copy values [B, length, ...], except padding, to their rows of a result [T, ...]."""
        rows, flat = self.rows.flatten(), values.flatten(0, 1)
        if self.held is not None:
            rows, flat = rows[self.held], flat[self.held]
        result.index_copy_(0, rows, flat)


@dataclass(frozen=True, slots=True)
class Window:
    """A layout of a step's T rows with `width` extra rows before those of each of S sequences.

    The fields are int64 indices into it: `before` [S x width] of the extra rows, `rows` [T] of the step's rows, `last`
    [S x width] of the last `width` rows of each sequence.
    """

    width: int
    before: Tensor
    rows: Tensor
    last: Tensor


class Spans:
    """The sequences of a step, whose rows are consecutive. `lengths` are their numbers of rows, each at least 1.

    `alone`: each sequence has one row. Callers then use neither waves nor windows, so no index tensors are created.

    No Python code runs per row or sequence: recurrent layers process sequences in waves, and convolutions process all
    rows at once.
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
        """Return waves that cover all rows: first one with the sequences of one row, then waves with the next rows of
        each longer sequence, at most `size` of each.
        """
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
        """Return the layout with `width` extra rows before each sequence."""
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
    """The recurrent states of a step's S sequences, as listed in `Facts.states`.

    Writes take effect when the whole step is done, so a failed step can be computed again.
    """

    @property
    def spans(self) -> Spans:
        """How the step's rows are divided into sequences."""

    def read(self, index: int) -> Tensor:
        """Return state `index` before the step, [S, ...], zero for new sequences. The caller may overwrite it."""

    def write(self, index: int, states: Tensor) -> None:
        """Store state `index` after the step, [S, ...]."""


Scan = Callable[[Sequence[Tensor], Tensor], tuple[Tensor, Tensor]]
"""Maps values [B, Q, ...] of Q rows each and states [B, ...] to results [B, Q, ...] and new states.

A sequence's rows may be followed by rows of zeros, which must not change its state.
"""


def scanned(states: States, index: int, size: int, scan: Scan, values: Sequence[Tensor]) -> Tensor:
    """Apply `scan` to values [T, ...], at most `size` rows of a sequence at a time.

    Returns the results [T, ...], and replaces the state `index`.
    """
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
