"""The contract of attention backends: a batch, its block tables, a call for each step and layer, and errors that lead
to another backend.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention.capabilities import Capabilities
from plimsoll_runtime.execution.device.faults import FaultKind, fault_of
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.layers.attention import Attention, NormOfHeads, RotatingAttention
from plimsoll_runtime.models.layers.device_copy import to_device


class OnDevice(NamedTuple):
    """The tables of a batch of S sequences where they are kept on a device too.

    blocks: int32 [N], the numbers of all tables. query_starts: int64 [S + 1], the first row of each sequence, and the
    number of rows. context_lens, begins: int64 [S], each one's tokens, and where its table lies in `blocks`.
    """

    blocks: Tensor
    query_starts: Tensor
    context_lens: Tensor
    begins: Tensor


class BlockTables(NamedTuple):
    """Sequence i's blocks, in order, are `counts[i]` of `blocks` from `begins[i]` on. Between tables may lie anything.

    Whoever writes into `blocks` (int32) sees to it that the cache has each of them. `there`: the same, on a device.
    """

    blocks: array[int]
    begins: Sequence[int]
    counts: Sequence[int]
    there: OnDevice | None = None

    @classmethod
    def of(cls, tables: Sequence[Sequence[int]]) -> BlockTables:
        """From lists, one table behind the other."""
        counts = [len(table) for table in tables]
        begins = list(accumulate(counts[:-1], initial=0))
        return cls(array("i", chain.from_iterable(tables)), begins, counts)

    def on(self, device: torch.device) -> Tensor:
        """`blocks` on a device, until the next step."""
        return to_device(np.frombuffer(self.blocks, np.int32), device) if self.there is None else self.there.blocks


def gathered(blocks: Tensor, begins: Tensor, width: int) -> Tensor:
    """Tables of up to `width` blocks side by side: int32 [N], int64 [S] -> int32 [S, width].

    What stands behind a shorter one's end is any block's number.
    """
    columns = torch.arange(width, device=blocks.device)
    return blocks[(begins[:, None] + columns).clamp_(max=blocks.numel() - 1)]


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
    """Whether its steps are for decoders that attend by themselves (`cpu_executor`); others can call them too."""
    capabilities: ClassVar[Capabilities]

    def __init__(self, cache: KvCache) -> None: ...

    def begin(self, batch: AttentionBatch) -> Attention:
        """Prepare what the layers of each group share (indices, masks), and return the step's attention.

        It is called for each layer in order with the step's rows: query `[T, heads, head_dim]`, key and value
        `[T, kv_heads, head_dim]`. It writes keys and values to the layer's cache, then attends each row to its
        sequence's tokens up to itself (within the layer's window), and returns `[T, heads, head_dim]`. Without keys
        and values it attends alone: a layer may read what an earlier one has written.
        """
        ...


_Result = TypeVar("_Result")

OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)
"""Memory that is short would be short for any backend: these come out as they are."""


class AttentionError(Exception):
    """An attention backend failed, which (`backend`) and how; the cause is its own error."""

    def __init__(self, backend: str, error: Exception) -> None:
        super().__init__(f"the attention backend {backend} failed with {type(error).__name__}: {error}")
        self.backend = backend


def create_backend(backend: type[AttentionBackend], cache: KvCache) -> AttentionBackend:
    """A backend over a cache. Raises AttentionError."""
    return _blamed(backend.name, backend, cache)


def prepare_step(backend: AttentionBackend, batch: AttentionBatch) -> Attention:
    """A step of the backend, which raises AttentionError, as this does.

    Errors of a fused backend are not told apart: its decoder attends by itself, and no other backend's steps fit it.
    """
    if backend.fused:
        return backend.begin(batch)
    step = _blamed(backend.name, backend.begin, batch)
    return _RotatingStep(backend.name, step) if isinstance(step, RotatingAttention) else _Step(backend.name, step)


class _Step:
    """See Attention."""

    def __init__(self, backend: str, step: Attention) -> None:
        self._backend = backend
        self._step = step

    def __call__(
        self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        """See Attention."""
        return _blamed(self._backend, self._step, layer, query, key, value, sinks)


class _RotatingStep(_Step):
    """See RotatingAttention."""

    def __init__(self, backend: str, step: RotatingAttention) -> None:
        super().__init__(backend, step)
        self._of_heads = step.of_heads

    def of_heads(
        self,
        layer: int,
        heads: Tensor,
        cos: Tensor,
        sin: Tensor,
        norm: NormOfHeads | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See RotatingAttention."""
        return _blamed(self._backend, self._of_heads, layer, heads, cos, sin, norm, sinks)


def _blamed(backend: str, work: Callable[..., _Result], *args: Any) -> _Result:
    try:
        return work(*args)
    except (AttentionError, *OUT_OF_MEMORY):
        # One that is made of several says which of them it was.
        raise
    except Exception as error:
        # On a device that has failed, or is full, another backend would fail as well.
        if fault_of(error).kind is not FaultKind.OTHER:
            raise
        raise AttentionError(backend, error) from error


class NoAttention:
    """See AttentionBackend and GraphBackend."""

    name: ClassVar[str] = "none"
    fused: ClassVar[bool] = False
    capabilities: ClassVar[Capabilities] = Capabilities()

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
