"""A linear layer whose weight lies as the device's matrix product likes it best.

On a CPU that is oneDNN's packed layout: plain `F.linear` in float32 was measured 3 to 5 times slower for 2 to 32
rows, and in bfloat16 1.4 times slower for one row (2 cores with AVX512-BF16).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_runtime.utils.heap import own_pages


class Linear:
    """y = x W^T + b, weight [out, in], bias [out] rounded to its dtype, as torch's products want it.

    Where it is packed, the weight passed in is not kept.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = None if bias is None else bias.to(weight.dtype)
        self._packed = _can_pack(weight)
        self._weight = _packed(weight) if self._packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""
        if self._packed:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return out
        return functional.linear(x, self._weight, self._bias)


def _packed(weight: Tensor) -> Tensor:
    with own_pages():
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        return packed


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32
