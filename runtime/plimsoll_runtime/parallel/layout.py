"""Which part of a model each rank of a parallel group has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from plimsoll_kernels.sampling.part_candidates import GROUP
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.models.ops.weight import Range
from plimsoll_runtime.models.spec.attention import AttentionShape


@dataclass(frozen=True, slots=True)
class Layout:
    """The ranks of a group: `tensor` ranks for each of `stages` stages.

    The ranks of the last stage come first, so that rank 0, whose process samples, has logits.
    """

    tensor: int = 1
    stages: int = 1

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.tensor * self.stages

    def stage(self, rank: int) -> int:
        """Return the number of a rank's stage, in the order in which a step passes through them."""
        return self.stages - 1 - rank // self.tensor

    def shard(self, rank: int) -> int:
        """Return the number of a rank among those of its stage."""
        return rank % self.tensor

    def together(self, rank: int) -> range:
        """Return the ranks of a rank's stage."""
        first = rank - self.shard(rank)
        return range(first, first + self.tensor)

    def before(self, rank: int) -> int | None:
        """Return the rank that sends values to a rank; None in the first stage."""
        return rank + self.tensor if self.stage(rank) else None

    def after(self, rank: int) -> int | None:
        """Return the rank to which a rank sends values; None in the last stage."""
        return rank - self.tensor if rank >= self.tensor else None


def layout_of(config: EngineConfig) -> Layout:
    """Return the layout that options ask for."""
    return Layout(config.tensor_parallel, config.pipeline_parallel)


def share(total: int, ranks: int, rank: int) -> Range:
    """Return a rank's range of `total` things, divided as evenly as possible; earlier ranks have one more."""
    size, more = divmod(total, ranks)
    first = rank * size + min(rank, more)
    return first, first + size + (rank < more)


def vocabulary_parts(vocab: int, ranks: int) -> tuple[Range, ...] | None:
    """Return the tokens of each rank, which begin at multiples of `GROUP` tokens: see `sampling.part_candidates`.

    None if there are fewer groups of tokens than ranks, and the vocabulary is not divided.
    """
    groups = -(-vocab // GROUP)
    if groups < ranks:
        return None
    ends = [min(vocab, GROUP * share(groups, ranks, rank)[1]) for rank in range(ranks)]
    return tuple(pairwise((0, *ends)))


@dataclass(frozen=True, slots=True)
class HeadRanges:
    """The query heads and the key heads of a rank."""

    queries: Range
    keys: Range

    def of(self, shape: AttentionShape) -> AttentionShape:
        """Return the rank's part of an attention shape. A shape of queries alone stays one."""
        first, end = self.queries
        alibi = None if shape.alibi is None else replace(shape.alibi, slopes=shape.alibi.slopes[first:end])
        keys = self.keys[1] - self.keys[0] if shape.kv_heads else 0
        return replace(shape, heads=end - first, kv_heads=keys, alibi=alibi)


def heads_of(shape: AttentionShape, ranks: int, rank: int) -> HeadRanges:
    """Return the heads of a rank. There must be at most as many ranks as query heads.

    If there are at most as many ranks as key heads, each rank has whole key heads with their queries. Otherwise each
    key head is copied to several ranks, which share its queries.
    """
    group = shape.heads // shape.kv_heads
    if ranks <= shape.kv_heads:
        first, end = share(shape.kv_heads, ranks, rank)
        return HeadRanges((first * group, end * group), (first, end))
    for key in range(shape.kv_heads):
        begin, last = share(ranks, shape.kv_heads, key)
        if begin <= rank < last:
            first, end = share(group, last - begin, rank - begin)
            return HeadRanges((key * group + first, key * group + end), (key, key + 1))
    raise ValueError(f"rank {rank} is not one of {ranks} ranks")
