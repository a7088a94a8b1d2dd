"""The largest value of each row in plain torch."""

from __future__ import annotations

from torch import Tensor


def row_maximum_reference(rows: Tensor) -> tuple[Tensor, Tensor]:
    """rows `[R, N]` -> values `[R]` and int64 indices `[R]`; a NaN counts as the largest."""
    values, indices = rows.max(dim=-1)
    return values, indices
