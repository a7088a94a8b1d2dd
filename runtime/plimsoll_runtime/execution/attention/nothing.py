"""For decoders none of whose layers attends: a step has nothing to prepare, and nobody calls it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.layers.attention import Attention


class NoAttention:
    """See AttentionBackend and GraphBackend."""

    name: ClassVar[str] = "none"
    fused: ClassVar[bool] = False

    def __init__(self, cache: KvCache) -> None:
        if cache.shapes:
            raise ValueError(f"{len(cache.shapes)} layers attend, and this computes no attention")

    def begin(self, batch: AttentionBatch) -> Attention:
        """See AttentionBackend."""
        return _nobody_attends

    def over(self, paged: Sequence[PagedBatch], cells: Sequence[Tensor]) -> Attention:
        """See GraphBackend."""
        return _nobody_attends

    def launch_key(self, sequences: int, longest: int) -> Hashable:
        """See GraphBackend."""
        return None

    def launch_lengths(self, sequences: int, most: int) -> Sequence[int]:
        """See GraphBackend."""
        return [most]


def _nobody_attends(
    layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
) -> Tensor:
    raise RuntimeError(f"layer {layer} attends, of a decoder without attention")
