"""The rows of a step whose tokens several ranks choose together, by what their choice needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from plimsoll_kernels.sampling.params import RowParams
from plimsoll_runtime.engine.protocol.plan import SlotDraw
from plimsoll_runtime.execution.sampling.state import SlotArrays, uniforms
from plimsoll_runtime.models.layers.device_copy import to_device
from plimsoll_runtime.models.ops.weight import Range

MOST_CANDIDATES = 512
"""Largest logits of a row that a rank sends for top-p, and the largest top-k that is chosen from candidates. With 512,
0.4 % of the rows of a text need all logits (temperature 0.8, top-p 0.95, two ranks, benchmarks/groups/choice.py), with
256 4 %, with 64 19 %."""

Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ChoiceRows:
    """R rows and their parameters (see `RowParams`), float32 or int32 [R]. The rows that are not greedy, by number:

    - `limited`: with a top-k that candidates satisfy.
    - `nucleus`: with top-p alone.
    - `weighed`: with neither; min-p may be used.
    - `deep`: with a larger top-k, which need all logits.

    `counts`: for each rank, the candidates of each row, int32 [R].
    """

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    limited: Index
    nucleus: Index
    weighed: Index
    deep: Index
    counts: tuple[NDArray[np.int32], ...]

    @classmethod
    def of(cls, arrays: SlotArrays, places: NDArray[np.int64], parts: Sequence[Range]) -> ChoiceRows:
        """Return the rows of some slots. `parts`: the tokens of each rank."""
        vocab = parts[-1][1]
        temperature, top_k = arrays.temperature[places], arrays.top_k[places]
        top_p = arrays.top_p[places]
        drawn = temperature > 0.0
        cut = drawn & (top_k > 0) & (top_k < vocab)
        nucleus = drawn & ~cut & (top_p < 1.0)
        limited = cut & (top_k <= MOST_CANDIDATES)
        wanted = np.where(limited, top_k, np.where(nucleus, MOST_CANDIDATES, 0)).astype(np.int32)
        return cls(
            *(temperature, top_k, top_p, arrays.min_p[places]),
            limited=limited.nonzero()[0],
            nucleus=nucleus.nonzero()[0],
            weighed=(drawn & ~cut & ~nucleus).nonzero()[0],
            deep=(cut & ~limited).nonzero()[0],
            counts=tuple(np.minimum(wanted, np.int32(end - first)) for first, end in parts),
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.temperature)

    def params(self, rows: Index, device: torch.device) -> RowParams:
        """Return the parameters of some rows on a device."""
        return RowParams(
            *(to_device(each[rows], device) for each in (self.temperature, self.top_k, self.top_p, self.min_p))
        )

    @property
    def exchanges_weights(self) -> bool:
        """Whether a second exchange follows that of the largest logits."""
        return bool(self.limited.size or self.nucleus.size or self.weighed.size)

    def second_size(self, rank: int) -> int:
        """Return the numbers that a rank sends in that exchange: candidates and their tokens, and weights as three
        numbers each.
        """
        return int(2 * self.counts[rank].sum() + 3 * (self.weighed.size + 2 * self.nucleus.size))


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step that samples `slots`: `special` ones are sampled from all logits, `shared` ones are chosen by
    all ranks.

    Both are numbers of rows; `rows` and `places` are of the shared ones.
    """

    slots: tuple[int, ...]
    special: Index
    shared: Index
    places: NDArray[np.int64]
    rows: ChoiceRows


class DrawnSlots:
    """How the tokens of the sequence in each slot are drawn; all ranks have the same."""

    def __init__(self, parts: Sequence[Range]) -> None:
        """`parts`: the tokens of each rank."""
        self._parts = parts
        self._arrays = SlotArrays()
        self._special: dict[int, bool] = {}
        self._last: StepRows | None = None

    def fill(self, draw: SlotDraw) -> None:
        """Store the parameters of a sequence that takes a slot."""
        self._arrays.fill(draw, self._parts[-1][1])
        self._special[draw.slot] = draw.whole
        self._last = None

    def rows(self, slots: tuple[int, ...]) -> StepRows:
        """Return the rows of a step. They are computed once for a steady batch."""
        if self._last is None or self._last.slots != slots:
            special = np.array([self._special[slot] for slot in slots], dtype=np.bool_)
            shared = (~special).nonzero()[0]
            places = self._arrays.places([slots[row] for row in shared.tolist()])
            rows = ChoiceRows.of(self._arrays, places, self._parts)
            self._last = StepRows(slots, special.nonzero()[0], shared, places, rows)
        return self._last

    def uniforms(self, rows: StepRows) -> NDArray[np.float64]:
        """Return a number in [0, 1) for each shared row's next token."""
        return uniforms(self._arrays.seeds[rows.places], self._arrays.num_outputs[rows.places])

    def count(self, rows: StepRows) -> None:
        """Count one more generated token for each shared row."""
        self._arrays.num_outputs[rows.places] += 1
