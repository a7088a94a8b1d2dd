"""The grouped product: checks arguments, then runs kernel or reference."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_kernels.dispatch import Implementation, check_floats, check_shape, use_triton
from plimsoll_kernels.grouped_product.reference import grouped_product_reference


def grouped_product(
    rows: Tensor,
    weights: Tensor,
    ends: Tensor,
    bias: Tensor | None = None,
    *,
    implementation: Implementation = "auto",
) -> Tensor:
    """Compute y = x W^T + b with W and b of each row's group; see the reference for the terms.

    rows `[R, I]`, weights `[G, O, I]`, ends int32 `[G]`, bias `[G, O]` or None -> contiguous `[R, O]`. Matrices of
    groups without rows are not read. Raises ValueError for wrong shapes, dtypes and devices. The values of `ends` are
    not checked, because that would stall a GPU: they must not fall, and the last must be R.
    """
    check_floats(rows=rows, weights=weights)
    if rows.dim() != 2 or weights.dim() != 3 or not len(weights):
        raise ValueError(
            f"rows {list(rows.shape)} and weights {list(weights.shape)} do not match: expected [R, I] and "
            "[G, O, I] with at least one group"
        )
    groups, outputs, inputs = weights.shape
    check_shape("rows", rows, len(rows), inputs)
    if not weights.is_contiguous():
        raise ValueError(
            f"weights has strides {weights.stride()}; it must be contiguous, because it is too large to copy here"
        )
    check_shape("ends", ends, groups)
    if ends.dtype != torch.int32 or ends.device != rows.device or ends.stride(0) != 1:
        raise ValueError(f"ends is {ends.dtype} on {ends.device}; expected contiguous int32 on the device of rows")
    if bias is not None:
        check_floats(rows=rows, bias=bias)
        check_shape("bias", bias, groups, outputs)
    if not use_triton(implementation, rows):
        return grouped_product_reference(rows, weights, ends, bias)
    from plimsoll_kernels.grouped_product.kernel import launch_grouped_product

    return launch_grouped_product(rows, weights, ends, bias)
