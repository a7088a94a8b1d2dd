"""The backend for CUDA and ROCm: Triton kernels over the paged cache, for any batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from plimsoll_kernels.latent_attention.op import latent_attention
from plimsoll_kernels.latent_attention.tiles import head_tiles
from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.configs import DEFAULTS, PagedConfigs
from plimsoll_kernels.paged_attention.decode.splits import decode_splits, split_lengths
from plimsoll_kernels.paged_attention.op import paged_attention
from plimsoll_kernels.paged_attention.tune import TunedHeads, tune_paged_attention
from plimsoll_kernels.processors import multiprocessors
from plimsoll_kernels.tuning.store import TuningStore
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.cache_write import RotatingWritingStep
from plimsoll_runtime.execution.attention.capabilities import Capabilities
from plimsoll_runtime.execution.attention.shared_prefix.planner import StepPrefixes
from plimsoll_runtime.execution.attention.step_tables import paged_batch
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.layers.attention import slopes_of
from plimsoll_runtime.models.spec.attention import AttentionShape
from plimsoll_runtime.weights.cache import cache_root

Configs = Mapping[AttentionShape, PagedConfigs]
"""Launch configurations of attention by the shape of a layer's heads; a missing one means `DEFAULTS`."""

Slopes = Mapping[AttentionShape, Tensor | None]
"""ALiBi's slopes for each shape, float32 [heads] on the device."""


def tuned_configs(cache: KvCache) -> dict[AttentionShape, PagedConfigs]:
    """Return the fastest configuration for each shape of a layer's heads, measured on the first layer that has the
    shape.

    Results are stored on disk for the next start. Latent shapes have only one configuration and are skipped.
    """
    store = TuningStore(cache_root() / "tuning")
    found: dict[AttentionShape, PagedConfigs] = {}
    for keys, values, shape in zip(cache.keys, cache.values, cache.shapes, strict=True):
        if shape not in found and not shape.latent:
            wanted = TunedHeads(shape.heads, shape.scale, shape.most_seen, shape.softcap)
            found[shape] = tune_paged_attention(keys, values, wanted, store)
    return found


class TritonBackend:
    """Kernels for chunks, decodes and mixed batches. A layer's heads are rotated as they are written to the cache.

    `prefixes` plans shared-prefix attention. `begin` applies its plan; callers of `over`, which make a step's tables
    themselves, apply it too if they want to share.
    """

    name: ClassVar[str] = "triton"
    fused: ClassVar[bool] = False
    capabilities: ClassVar[Capabilities] = Capabilities(
        devices=("cuda", "rocm"),
        features=("window", "softcap", "chunk", "alibi", "sinks", "latent"),
        needs=("triton",),
    )

    def __init__(self, cache: KvCache, configs: Configs | None = None) -> None:
        """Use `configs`; if None, on a GPU the fastest ones, read from disk or measured for a few seconds, elsewhere
        `DEFAULTS`.
        """
        self._cache = cache
        if configs is None:
            configs = tuned_configs(cache) if cache.device.type == "cuda" else {}
        self._configs = configs
        self._slopes = {shape: slopes_of(shape, cache.device) for shape in dict.fromkeys(cache.shapes)}
        self.prefixes = StepPrefixes(cache)

    def begin(self, batch: AttentionBatch) -> TritonStep:
        """Return the step's attention, which is called for each layer. Copies one table a cache group to the device,
        and one more if shared prefixes changed.
        """
        groups = batch.groups
        paged = [
            replace(paged_batch(group, self._cache), prefixes=shared)
            for group, shared in zip(groups, self.prefixes.of(batch), strict=True)
        ]
        return self.over(paged, [group.cells for group in groups])

    def over(self, paged: Sequence[PagedBatch], cells: Sequence[Tensor]) -> TritonStep:
        """Return the attention of a step whose tables are on the device already, as a CUDA graph needs it; a group's
        `cells`: int64 [T].
        """
        return TritonStep(self._cache, paged, cells, self._configs, self._slopes)

    def launch_key(self, sequences: int, longest: int) -> tuple[int, ...]:
        """Return, for each distinct attention shape, the number of splits of a decode's context.

        For `sequences` decodes, the longest with `longest` tokens. CUDA graphs with equal keys launch the same
        programs.
        """
        processors = multiprocessors(self._cache.device)
        shapes = dict.fromkeys((_programs(shape), shape.most_seen) for shape in self._cache.shapes)
        return tuple(decode_splits(sequences * each, longest, processors, window) for each, window in shapes)

    def launch_lengths(self, sequences: int, most: int) -> list[int]:
        last = {self.launch_key(sequences, length): length for length in split_lengths(most)}
        return list(last.values())


def _programs(shape: AttentionShape) -> int:
    """Return how many Triton programs compute one split of a decode's context."""
    return head_tiles(shape.heads) if shape.latent else shape.kv_heads


class TritonStep(RotatingWritingStep):
    """One step's attention by the Triton kernels."""

    def __init__(
        self,
        cache: KvCache,
        paged: Sequence[PagedBatch],
        cells: Sequence[Tensor],
        configs: Configs,
        slopes: Slopes,
    ) -> None:
        super().__init__(cache, cells, "triton")
        self._paged = paged
        self._configs = configs
        self._slopes = slopes

    def attend(self, layer: int, query: Tensor, sinks: Tensor | None) -> Tensor:
        cache, shape = self._cache, self._cache.shapes[layer]
        paged = self._paged[cache.group_of[layer]]
        if shape.latent:
            return latent_attention(query, cache.keys[layer][0], paged, scale=shape.scale, implementation="triton")
        return paged_attention(
            query,
            cache.keys[layer],
            cache.values[layer],
            paged,
            scale=shape.scale,
            window=shape.window,
            softcap=shape.softcap,
            chunk=shape.chunk,
            slopes=self._slopes[shape],
            sinks=sinks,
            configs=self._configs.get(shape, DEFAULTS),
            implementation="triton",
        )
