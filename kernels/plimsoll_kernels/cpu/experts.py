"""Experts for the CPU kernels: the packed weights of all experts of a layer, contiguous."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_kernels.cpu.op_records import LinearRecord
from plimsoll_kernels.cpu.places import Places
from plimsoll_kernels.cpu.records import KernelsRecord
from plimsoll_kernels.cpu.threads import thread_count


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """The number of experts, the width of hidden states, and the width between an expert's two products."""

    experts: int
    hidden: int
    inner: int


class PackedExperts:
    """The MLPs of a layer's experts, all of one size. Weights are requested expert by expert, packed and not kept.

    gate_up(number) returns the gate and the gated weight, `[inner, hidden]` each, or the only weight without gates;
    down(number) `[hidden, inner]`, all in `dtype`, the kernels' own, and contiguous. `biases`: float32 of the first
    product and of the second, `[experts, 2 inner or inner]` and `[experts, hidden]`.
    """

    def __init__(
        self,
        kernels: KernelsRecord,
        sizes: ExpertSizes,
        gate_up: Callable[[int], Sequence[Tensor]],
        down: Callable[[int], Tensor],
        dtype: torch.dtype,
        places: Places,
        *,
        gated: bool = True,
        biases: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        experts, hidden, inner = sizes.experts, sizes.hidden, sizes.inner

        def pack_first(to: Tensor) -> None:
            for number, own in enumerate(to):
                parts = gate_up(number)
                pack = kernels.pack_gated if gated else kernels.pack
                pack(*(part.data_ptr() for part in parts), inner, hidden, own.data_ptr(), thread_count())

        def pack(to: Tensor) -> None:
            for number, own in enumerate(to):
                weight = down(number)
                kernels.pack(weight.data_ptr(), hidden, inner, own.data_ptr(), thread_count())

        self._gate_up = places.place([experts, kernels.packed_elements(inner, hidden, gated)], dtype, pack_first)
        self._down = places.place([experts, kernels.packed_elements(hidden, inner, 0)], dtype, pack)
        self._biases = None if biases is None else [places.keep(bias) for bias in biases]
        first, second = (None, None) if self._biases is None else (bias.data_ptr() for bias in self._biases)
        self.gate_up = LinearRecord(weight=self._gate_up.data_ptr(), bias=first, inputs=hidden, columns=inner)
        self.down = LinearRecord(weight=self._down.data_ptr(), bias=second, inputs=inner, columns=hidden)
