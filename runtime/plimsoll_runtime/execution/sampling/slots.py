"""What the slots ask of the choice of tokens, as arrays by slot: a step's rows are picked from them, never built."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from plimsoll_kernels.sampling.params import RowParams
from plimsoll_runtime.engine.plan import SlotInit

COLDEST = 1e-4
"""Temperatures below this are greedy in all but name, and would overflow float32 when logits are divided by them."""

_FEWEST = 64


class SlotArrays:
    """Parameters, seed and number of generated tokens (those before a preemption too) of each slot."""

    def __init__(self) -> None:
        self._taken = np.zeros(0, dtype=np.bool_)
        self.temperature = np.zeros(0, dtype=np.float32)
        self.top_k = np.zeros(0, dtype=np.int32)
        self.top_p = np.zeros(0, dtype=np.float32)
        self.min_p = np.zeros(0, dtype=np.float32)
        self.seeds = np.zeros(0, dtype=np.int64)
        self.num_outputs = np.zeros(0, dtype=np.int64)

    def fill(self, init: SlotInit, vocab_size: int) -> None:
        """A sequence takes a slot."""
        slot, params = init.slot, init.params
        if slot >= self._taken.size:
            self._grow(max(_FEWEST, 2 * slot))
        self._taken[slot] = True
        self.temperature[slot] = 0.0 if params.greedy else max(params.temperature, COLDEST)
        self.top_k[slot] = min(max(params.top_k, 0), vocab_size)
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.seeds[slot] = init.seed
        self.num_outputs[slot] = len(init.output_ids)

    def free(self, slot: int) -> None:
        """A slot is empty again."""
        self._taken[slot] = False

    def places(self, slots: Sequence[int]) -> NDArray[np.int64]:
        """The slots as an index into the arrays. Raises KeyError where one of them is empty."""
        places = np.array(slots, dtype=np.int64)
        if places.size and (places.max() >= self._taken.size or not self._taken[places].all()):
            raise KeyError(f"of the slots {list(slots)} some are empty")
        return places

    def params(self, places: NDArray[np.int64], device: torch.device) -> RowParams:
        """Those of some slots, on a device."""
        return RowParams(
            *(torch.from_numpy(a[places]).to(device) for a in (self.temperature, self.top_k, self.top_p, self.min_p))
        )

    def check_integrity(self) -> None:
        """Raise AssertionError where an array is not as long as the others."""
        arrays = (self.temperature, self.top_k, self.top_p, self.min_p, self.seeds, self.num_outputs)
        assert all(a.size == self._taken.size for a in arrays), [a.size for a in arrays]

    def _grow(self, size: int) -> None:
        for name, array in list(vars(self).items()):
            grown = np.zeros(size, dtype=array.dtype)
            grown[: array.size] = array
            setattr(self, name, grown)
