"""The terms of a layer's attention scores."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class ScoreTerms(NamedTuple):
    """The terms of `paged_attention_reference`, checked by `op.paged_attention`."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    chunk: int | None = None
    slopes: Tensor | None = None
    sinks: Tensor | None = None
