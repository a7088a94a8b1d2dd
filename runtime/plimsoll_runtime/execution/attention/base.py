"""What the runner asks of an attention backend: one call a step, one call a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from plimsoll_runtime.execution.attention.block_tables import BlockTables
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.layers.attention import Attention


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """The sequences of one step, their rows one after the other (S sequences, T rows in all), in a group of the cache.

    query_lens: rows of each sequence, at least 1: a decode has one, a chunk of a prompt or a draft more.
    context_lens: tokens in its table after this step, the step's own included. Attention counts positions from the
        table's first token on, so that the last row stands at context_len - 1; the model's own positions, which its
        ropes turn by, are larger by what the group has given back.
    block_tables: the blocks of each sequence in order, enough for its context; more are ignored. They may lie in
        memory that the next step changes.
    cells: int64 [T] on the device: where each row's key and value go, block x block_size + offset.
    rest: the same sequences in the cache's other groups, in their order.
    longest: most tokens of a sequence, what was given back included; None: as many as in the tables.

    Raises ValueError when the parts contradict each other.
    """

    query_lens: Sequence[int]
    context_lens: Sequence[int]
    block_tables: BlockTables
    cells: Tensor
    rest: tuple[AttentionBatch, ...] = ()
    longest: int | None = None

    @property
    def groups(self) -> tuple[AttentionBatch, ...]:
        """The step in each group of the cache."""
        return (self, *self.rest)

    def __post_init__(self) -> None:
        if not len(self.query_lens) == len(self.context_lens) == len(self.block_tables.begins) > 0:
            raise ValueError(
                f"{len(self.query_lens)} query lengths, {len(self.context_lens)} context lengths and "
                f"{len(self.block_tables.begins)} block tables do not make a batch"
            )
        if sum(self.query_lens) != self.cells.numel():
            raise ValueError(f"{sum(self.query_lens)} rows, but {self.cells.numel()} cells for them")
        for query, context in zip(self.query_lens, self.context_lens, strict=True):
            if not 1 <= query <= context:
                raise ValueError(f"a sequence has {query} rows in a context of {context} tokens")


class AttentionBackend(Protocol):
    """A way to compute attention over one cache."""

    name: ClassVar[str]
    fused: ClassVar[bool]
    """Whether its steps are for decoders that attend by themselves (`models/fused.py`); others can call them too."""

    def __init__(self, cache: KvCache) -> None: ...

    def begin(self, batch: AttentionBatch) -> Attention:
        """Prepare what the layers of each group share (indices, masks), and return the step's attention.

        It is called for each layer in order with the step's rows: query `[T, heads, head_dim]`, key and value
        `[T, kv_heads, head_dim]`. It writes keys and values to the layer's cache, then attends each row to its
        sequence's tokens up to itself (within the layer's window), and returns `[T, heads, head_dim]`. Without keys
        and values it attends alone: a layer may read what an earlier one has written.
        """
        ...
