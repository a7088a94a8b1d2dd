"""Linear layers: one matrix, or one for each group of rows, in the device's fastest layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain, pairwise, repeat
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_kernels.dispatch import Implementation, use_triton
from plimsoll_kernels.grouped_product.op import grouped_product
from plimsoll_runtime.utils.heap import own_pages


class Linear:
    """y = x W^T + b with weight [out, in]. The bias [out] is rounded to the weight's dtype, as torch's products
    require.

    If the weight is packed, the given tensor is not kept.

    On a CPU the layout is oneDNN's packed one: plain `F.linear` was measured 3 to 5 times slower in float32 for 2 to 32
    rows, and 1.4 times slower in bfloat16 for one row (2 cores with AVX512-BF16).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = None if bias is None else bias.to(weight.dtype)
        self._packed = _can_pack(weight)
        self._weight = _packed(weight) if self._packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """Return x W^T + b [T, out] for x [T, in]."""
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


ALIGNMENT = 16
"""Byte alignment that `grouped_mm` needs for matrix rows."""


class Groups:
    """Sorts rows by group, for example by expert. `chosen` int64 [T, K] has K group numbers, below `count`, for each
    row.
    """

    def __init__(self, chosen: Tensor, count: int) -> None:
        self._each = chosen.shape[1]
        self._count = count
        self._sorted, self._order = chosen.flatten().sort(stable=True)

    def taken(self, x: Tensor) -> Tensor:
        """Return each row of x [T, W] K times, once for each of its groups, sorted by group: [T x K, W]."""
        return x[self._order // self._each]

    def of_rows(self, weights: Tensor) -> Tensor:
        """Return weights [T, K] in the order of `taken`: [T x K, 1]."""
        return weights.flatten()[self._order][:, None]

    @property
    def numbers(self) -> Tensor:
        """int64 [T x K]: the group of each row of `taken`."""
        return self._sorted

    def summed(self, y: Tensor, weights: Tensor) -> Tensor:
        """Return for each row the weighted sum of its K rows of y: [T, W].

        y [T x K, W] is in the order of `taken`; weights are [T, K].
        """
        by_row = torch.empty_like(y)
        by_row[self._order] = y
        return torch.bmm(weights.to(y.dtype)[:, None], by_row.view(-1, self._each, y.shape[1]))[:, 0]

    @cached_property
    def ends(self) -> Tensor:
        """int32 [count]: for each group, the index in `taken` after its last row."""
        numbers = torch.arange(self._count, device=self._sorted.device)
        return torch.searchsorted(self._sorted, numbers, right=True, out_int32=True)

    @cached_property
    def spans(self) -> list[tuple[int, int, int]]:
        """(group number, first row, end) in `taken`, for each group with rows. On a GPU this waits for the device."""
        sizes = torch.bincount(self._sorted, minlength=self._count).tolist()
        spans = pairwise(accumulate(sizes, initial=0))
        return [(number, start, end) for number, (start, end) in enumerate(spans) if end > start]


class GroupedLinear(Protocol):
    """y = x W^T + b, with W and b of each row's group."""

    def __call__(self, x: Tensor, groups: Groups) -> Tensor:
        """Return [rows, out] for x [rows, in], sorted by `Groups.taken`."""


class EachLinear:
    """A separate product for each group with rows.

    Packed on a CPU (see `Linear`); matrices of groups without rows are not read. torch's `grouped_mm` over plain
    matrices was measured 2.2 to 2.3 times slower there in float32 and 1.2 to 1.7 times in bfloat16 (64 matrices of
    1,024 x 1,024, 8 and 512 rows, one core with AVX512-BF16).
    """

    def __init__(self, weights: Iterator[Tensor], biases: Sequence[Tensor] = ()) -> None:
        own: Iterable[Tensor | None] = biases or repeat(None)
        self._linears = [Linear(weight, bias) for weight, bias in zip(weights, own, strict=False)]

    def __call__(self, x: Tensor, groups: Groups) -> Tensor:
        parts = [self._linears[number](x[start:end]) for number, start, end in groups.spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class StackedLinear:
    """All matrices in one tensor [count, out, in], multiplied by torch's `grouped_mm`, which needs aligned rows."""

    def __init__(self, weights: Iterator[Tensor], count: int, biases: Sequence[Tensor] = ()) -> None:
        self._stack = _stacked(weights, count)
        self._biases = torch.stack(list(biases)).to(self._stack) if biases else None

    def __call__(self, x: Tensor, groups: Groups) -> Tensor:
        y = functional.grouped_mm(x, self._stack.transpose(1, 2), offs=groups.ends)
        return y if self._biases is None else y + self._biases[groups.numbers]


class KernelLinear(StackedLinear):
    """All matrices in one tensor [count, out, in], multiplied by one launch of our kernel, for any shape."""

    def __call__(self, x: Tensor, groups: Groups) -> Tensor:
        return grouped_product(x, self._stack, groups.ends, self._biases, implementation="triton")


def grouped_linear(
    weights: Iterator[Tensor], count: int, biases: Sequence[Tensor] = (), implementation: Implementation = "auto"
) -> GroupedLinear:
    """Return a layer of `count` matrices [out, in] of one shape, which are read one at a time.

    `biases` [out] are one for each matrix, or none. On a GPU one launch of our Triton kernel computes all groups, and
    the host does not wait for their sizes; without Triton, torch's `grouped_mm` does, if its alignment allows.
    Otherwise, and on a CPU, each group is a separate product (`EachLinear`). `implementation` "triton" requires the
    kernel.
    """
    first = next(weights)
    every = chain([first], weights)
    if use_triton(implementation, first):
        return KernelLinear(every, count, biases)
    aligned = all(width * first.itemsize % ALIGNMENT == 0 for width in first.shape)
    return StackedLinear(every, count, biases) if first.is_cuda and aligned else EachLinear(every, biases)


def _stacked(weights: Iterator[Tensor], count: int) -> Tensor:
    first = next(weights)
    stack = first.new_empty((count, *first.shape))
    for number, weight in enumerate(chain([first], weights)):
        stack[number] = weight
    return stack
