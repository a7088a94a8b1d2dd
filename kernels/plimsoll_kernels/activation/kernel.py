"""The gate in Triton: one program for a piece of a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from plimsoll_kernels.activation.kinds import Activation

PIECE = 1024
"""The most elements of a row in one program, so that several programs compute a row of a large MLP, even if it is the
only row.
"""


@triton.jit
def _gated(out, gate_up, row_stride, SIZE: tl.constexpr, KIND: tl.constexpr, PIECE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    inside = column < SIZE
    source = gate_up + row * row_stride + column
    gate = tl.load(source, mask=inside, other=0.0)
    up = tl.load(source + SIZE, mask=inside, other=0.0).to(tl.float32)
    x = gate.to(tl.float32)
    if KIND == "silu":
        y = x * tl.sigmoid(x)
    elif KIND == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        # x / 2 (1 + tanh z) = x sigmoid(2 z), where z = sqrt(2 / pi) (x + 0.044715 x^3)
        y = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        if KIND == "relu2":
            y = y * y
    tl.store(out + row * SIZE + column, (y * up).to(gate.dtype), mask=inside)


def launch_gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """Return activation(gate) x up of gate_up `[T, 2 I]` with contiguous rows, gates first -> contiguous `[T, I]`."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
    piece = min(PIECE, triton.next_power_of_2(size))
    _gated[(rows, triton.cdiv(size, piece))](
        out,
        gate_up,
        gate_up.stride(0),
        SIZE=size,
        KIND=activation,
        PIECE=piece,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out
