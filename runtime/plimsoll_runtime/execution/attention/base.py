"""The contract of attention backends: a batch, its block tables, a call for each step and layer, and errors that make
the runtime select another backend.
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
    """The tables of a batch of S sequences in device memory.

    blocks: int32 [N], the blocks of all tables. query_starts: int64 [S + 1], the first row of each sequence, and the
    number of rows. context_lens, begins: int64 [S], the tokens of each sequence in its table after this step, and the
    index of its table in `blocks`.
    """

    blocks: Tensor
    query_starts: Tensor
    context_lens: Tensor
    begins: Tensor


class BlockTables(NamedTuple):
    """The block tables of a batch: sequence i has the `counts[i]` entries of `blocks` from `begins[i]` on.

    Entries between tables are ignored. The code that writes `blocks` (int32) ensures that the cache has each block.
    `there`: the same tables in device memory; None if they have not been copied there.
    """

    blocks: array[int]
    begins: Sequence[int]
    counts: Sequence[int]
    there: OnDevice | None = None

    @classmethod
    def of(cls, tables: Sequence[Sequence[int]]) -> BlockTables:
        """Return tables from lists, stored contiguously."""
        counts = [len(table) for table in tables]
        begins = list(accumulate(counts[:-1], initial=0))
        return cls(array("i", chain.from_iterable(tables)), begins, counts)

    def on(self, device: torch.device) -> Tensor:
        """Return `blocks` on a device, valid until the next step."""
        return to_device(np.frombuffer(self.blocks, np.int32), device) if self.there is None else self.there.blocks


def gathered(blocks: Tensor, begins: Tensor, width: int) -> Tensor:
    """Copy tables of up to `width` blocks into rows: int32 [N], int64 [S] -> int32 [S, width].

    Entries after the end of a shorter table are arbitrary valid block numbers.
    """
    columns = torch.arange(width, device=blocks.device)
    return blocks[(begins[:, None] + columns).clamp_(max=blocks.numel() - 1)]


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """The sequences of one step in one cache group: S sequences, T rows in all, in order.

    query_lens: rows of each sequence, at least 1: a decode has one, a chunk of a prompt or a draft more.
    context_lens: tokens in its table after this step, the step's own included. Attention counts positions from the
      table's first token on, so the last row has the position context_len - 1. The model's own positions, which rotary
      embeddings use, are larger by the number of tokens that the cache group has freed.
    block_tables: the blocks of each sequence in order, enough for its context; more are ignored. The next step may
      overwrite this memory.
    cells: int64 [T] on the device: the cell of each row's key and value, block x block_size + offset.
    rest: the same sequences in the other cache groups, in their order.
    longest: tokens of the longest sequence, freed ones included; None: the largest of `context_lens`.

    Raises ValueError if the fields contradict each other.
    """

    query_lens: Sequence[int]
    context_lens: Sequence[int]
    block_tables: BlockTables
    cells: Tensor
    rest: tuple[AttentionBatch, ...] = ()
    longest: int | None = None

    @property
    def groups(self) -> tuple[AttentionBatch, ...]:
        """The step's batch of each cache group: this one, then `rest`."""
        return (self, *self.rest)

    def __post_init__(self) -> None:
        if not len(self.query_lens) == len(self.context_lens) == len(self.block_tables.begins) > 0:
            raise ValueError(
                f"{len(self.query_lens)} query lengths, {len(self.context_lens)} context lengths and "
                f"{len(self.block_tables.begins)} block tables differ in number or are empty"
            )
        if sum(self.query_lens) != self.cells.numel():
            raise ValueError(
                f"the batch has {sum(self.query_lens)} rows but {self.cells.numel()} cells; it needs one cell a row"
            )
        for query, context in zip(self.query_lens, self.context_lens, strict=True):
            if not 1 <= query <= context:
                raise ValueError(f"a sequence has {query} rows, which must be from 1 to its context length {context}")


class AttentionBackend(Protocol):
    """An implementation of attention over one cache."""

    name: ClassVar[str]
    fused: ClassVar[bool]
    """Whether the CPU executor reads the backend's steps and computes attention itself. Others, such as the benchmark,
    can call the steps for each layer.
    """
    capabilities: ClassVar[Capabilities]

    def __init__(self, cache: KvCache) -> None: ...

    def begin(self, batch: AttentionBatch) -> Attention:
        """Prepare the indices and masks that the layers of each cache group share, and return the step's attention.

        The result is called for each layer in order with the step's rows: query `[T, heads, head_dim]`, key and value
        `[T, kv_heads, head_dim]`. It writes keys and values to the layer's cache, then attends each row to its
        sequence's tokens up to itself (within the layer's window), and returns `[T, heads, head_dim]`. Without keys and
        values it only attends: a layer may read the cache that an earlier layer has written.
        """
        ...


_Result = TypeVar("_Result")

OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)
"""Errors that are raised unchanged, because another backend would run out of memory too."""


class AttentionError(Exception):
    """An attention backend, named by `backend`, failed; `__cause__` is its own error."""

    def __init__(self, backend: str, error: Exception) -> None:
        super().__init__(f"the attention backend {backend} failed with {type(error).__name__}: {error}")
        self.backend = backend


def create_backend(backend: type[AttentionBackend], cache: KvCache) -> AttentionBackend:
    """Create a backend over a cache. Raises AttentionError."""
    return _blamed(backend.name, backend, cache)


def prepare_step(backend: AttentionBackend, batch: AttentionBatch) -> Attention:
    """Return the backend's attention for a step. This function and the attention raise AttentionError if the backend
    fails.

    Errors of a fused backend are raised unchanged: its decoder computes attention itself, and other backends' steps do
    not fit that decoder.
    """
    if backend.fused:
        return backend.begin(batch)
    step = _blamed(backend.name, backend.begin, batch)
    return _RotatingStep(backend.name, step) if isinstance(step, RotatingAttention) else _Step(backend.name, step)


class _Step:
    """A backend's attention for a step, which raises AttentionError if the backend fails."""

    def __init__(self, backend: str, step: Attention) -> None:
        self._backend = backend
        self._step = step

    def __call__(
        self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        return _blamed(self._backend, self._step, layer, query, key, value, sinks)


class _RotatingStep(_Step):
    """A backend's rotating attention for a step, which raises AttentionError if the backend fails."""

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
        return _blamed(self._backend, self._of_heads, layer, heads, cos, sin, norm, sinks)


def _blamed(backend: str, work: Callable[..., _Result], *args: Any) -> _Result:
    try:
        return work(*args)
    except (AttentionError, *OUT_OF_MEMORY):
        # A backend that is made of several has raised the name of the one that failed.
        raise
    except Exception as error:
        # On a device that has failed or is full, another backend would fail as well.
        if fault_of(error).kind is not FaultKind.OTHER:
            raise
        raise AttentionError(backend, error) from error


class NoAttention:
    """The backend of models without attention layers."""

    name: ClassVar[str] = "none"
    fused: ClassVar[bool] = False
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self, cache: KvCache) -> None:
        if cache.shapes:
            raise ValueError(
                f"the model has {len(cache.shapes)} attention layers, but the backend 'none' computes no attention"
            )

    def begin(self, batch: AttentionBatch) -> Attention:
        return _nobody_attends

    def over(self, paged: Sequence[PagedBatch], cells: Sequence[Tensor]) -> Attention:
        return _nobody_attends

    def launch_key(self, sequences: int, longest: int) -> Hashable:
        return None

    def launch_lengths(self, sequences: int, most: int) -> Sequence[int]:
        return [most]


def _nobody_attends(
    layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
) -> Tensor:
    raise RuntimeError(f"layer {layer} called attention in a model without attention layers")
