"""Rows whose tokens are chosen by their parameters alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PlainRows:
    """R rows without penalties, biases, masks or reports, as the host has them.

    slots int64 [R]; uniforms float64 [R] in [0, 1); temperature, top_p, min_p float32 [R], top_k int32 [R]: see
    RowParams.
    """

    slots: NDArray[np.int64]
    uniforms: NDArray[np.float64]
    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]

    @classmethod
    def none(cls) -> PlainRows:
        """No rows."""
        empty: NDArray[Any] = np.zeros(0)
        return cls(empty, empty, empty, empty, empty, empty)
