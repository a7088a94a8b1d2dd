"""Experts for the CPU kernels: the packed weights of all of a layer's, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_kernels.cpu.op_records import LinearRecord
from plimsoll_kernels.cpu.places import Places
from plimsoll_kernels.cpu.records import KernelsRecord
from plimsoll_kernels.cpu.threads import thread_count


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """How many experts there are, how wide states are, and how wide is what gates open."""

    experts: int
    hidden: int
    inner: int


class PackedExperts:
    """Gated MLPs of one size. Weights are asked for expert by expert, packed and not kept.

    gate_up(number) gives the gate and what it opens, `[inner, hidden]` each; down(number) `[hidden, inner]`, all in
    `dtype`, the kernels' own, and contiguous.
    """

    def __init__(
        self,
        kernels: KernelsRecord,
        sizes: ExpertSizes,
        gate_up: Callable[[int], tuple[Tensor, Tensor]],
        down: Callable[[int], Tensor],
        dtype: torch.dtype,
        places: Places,
    ) -> None:
        experts, hidden, inner = sizes.experts, sizes.hidden, sizes.inner

        def pack_gated(to: Tensor) -> None:
            for number, own in enumerate(to):
                gate, up = gate_up(number)
                kernels.pack_gated(gate.data_ptr(), up.data_ptr(), inner, hidden, own.data_ptr(), thread_count())

        def pack(to: Tensor) -> None:
            for number, own in enumerate(to):
                weight = down(number)
                kernels.pack(weight.data_ptr(), hidden, inner, own.data_ptr(), thread_count())

        self._gate_up = places.place([experts, kernels.packed_elements(inner, hidden, 1)], dtype, pack_gated)
        self._down = places.place([experts, kernels.packed_elements(hidden, inner, 0)], dtype, pack)
        self.gate_up = LinearRecord(self._gate_up.data_ptr(), None, hidden, inner)
        self.down = LinearRecord(self._down.data_ptr(), None, inner, hidden)
