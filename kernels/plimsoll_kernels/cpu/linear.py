"""Linear layers for the CPU kernels: weights packed into panels, in memory that `places` provides."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_kernels.cpu.op_records import LinearRecord
from plimsoll_kernels.cpu.places import OWN, Places
from plimsoll_kernels.cpu.records import KernelsRecord
from plimsoll_kernels.cpu.threads import thread_count


class PackedLinear:
    """A linear layer, y = x W^T + b, with a packed weight. The weight passed in is copied, not kept.

    weight `[columns, inputs]` in the kernels' dtype, contiguous; bias `[columns]` in any float dtype.
    """

    def __init__(
        self, kernels: KernelsRecord, weight: Tensor, bias: Tensor | None = None, places: Places = OWN
    ) -> None:
        columns, inputs = self.shape = weight.shape
        self._kernels = kernels

        def pack(to: Tensor) -> None:
            kernels.pack(weight.data_ptr(), columns, inputs, to.data_ptr(), thread_count())

        self.weight = places.place([kernels.packed_elements(columns, inputs, 0)], weight.dtype, pack)
        self._bias = None if bias is None else places.keep(bias.float().contiguous())
        self.record = _record(self.weight, self._bias, inputs, columns)

    def __call__(self, x: Tensor, buffer: Buffer | None = None) -> Tensor:
        """Compute x `[T, inputs]` in the kernels' dtype -> float32 `[T, columns]`, without intermediate rounding.

        If `buffer` is given, the result is in it, until its next use.
        """
        x = x.contiguous()
        shape = (x.shape[0], self.record.columns)
        out = torch.empty(shape) if buffer is None else buffer.floats(*shape)
        if x.shape[0]:
            self._kernels.linear(x.data_ptr(), x.shape[0], ctypes.byref(self.record), out.data_ptr(), thread_count())
        return out


class PackedGatedLinear:
    """The two weights of a gated linear layer, `[columns, inputs]` each: the gate's and the gated one, packed together
    panel by panel.
    """

    def __init__(
        self, kernels: KernelsRecord, gate: Tensor, up: Tensor, bias: Tensor | None = None, places: Places = OWN
    ) -> None:
        columns, inputs = gate.shape

        def pack(to: Tensor) -> None:
            kernels.pack_gated(gate.data_ptr(), up.data_ptr(), columns, inputs, to.data_ptr(), thread_count())

        self._packed = places.place([kernels.packed_elements(columns, inputs, 1)], gate.dtype, pack)
        self._bias = None if bias is None else places.keep(bias.float().contiguous())
        self.record = _record(self._packed, self._bias, inputs, columns)


def _record(packed: Tensor, bias: Tensor | None, inputs: int, columns: int) -> LinearRecord:
    address = None if bias is None else bias.data_ptr()
    return LinearRecord(weight=packed.data_ptr(), bias=address, inputs=inputs, columns=columns)
