"""A pair of backends: one attends for sequences with several rows in a step, the other for those with one.

Prompts are limited by computation and decodes by reading memory, so different backends may be the fastest for each. A
step with both is divided by sequences: keys and values of all rows are written once, before any row attends, then each
of the two backends attends to the cache. Neither may be a backend that prepares blocks as it writes them (`torch` on a
CPU).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import ClassVar, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention.base import (
    AttentionBackend,
    AttentionBatch,
    BlockTables,
    OnDevice,
    create_backend,
    prepare_step,
)
from plimsoll_runtime.execution.attention.cache_write import RotatingWritingStep, WritingStep
from plimsoll_runtime.execution.attention.capabilities import Capabilities, Target
from plimsoll_runtime.execution.attention.shared_prefix.planner import SharingBackend
from plimsoll_runtime.execution.graphs.decode import GraphBackend
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.layers.attention import Attention, RotatingAttention
from plimsoll_runtime.models.layers.device_copy import to_device

Ints = NDArray[np.int64]
Rows = slice | Tensor
"""Rows of a step: consecutive ones, or int64 [N] on the device."""


@cache
def split_backend(
    chunks: type[AttentionBackend], decodes: type[AttentionBackend], name: str | None = None
) -> type[AttentionBackend]:
    """Return the backend that passes sequences with several rows to `chunks` and the others to `decodes`.

    Its steps of decodes can be captured if those of `decodes` can. It is called `name`, or after both. Its capabilities
    are those of `chunks`, and it refuses targets that `decodes` refuses as well.
    """
    base = _DividedGraphBackend if issubclass(decodes, GraphBackend) else SplitBackend
    parts = {"name": name or f"{chunks.name}+{decodes.name}", "of_chunks": chunks, "of_decodes": decodes}
    both = replace(chunks.capabilities, checks=(decodes.capabilities.refusal, _on_a_cpu, *chunks.capabilities.checks))
    return cast(type[AttentionBackend], type("Divided", (base,), parts | {"capabilities": both}))


def _on_a_cpu(target: Target) -> str | None:
    return (
        "divides steps between two backends, which is not supported on a CPU" if target.device.type == "cpu" else None
    )


def parts_of(backend: type[AttentionBackend]) -> tuple[str, ...]:
    """Return the names of a backend and of those that it is made of."""
    if not issubclass(backend, SplitBackend):
        return (backend.name,)
    return (backend.name, *parts_of(backend.of_chunks), *parts_of(backend.of_decodes))


def exclude_failed(failed: str, backends: Iterable[type[AttentionBackend]]) -> list[type[AttentionBackend]]:
    """Return the backends that do not contain the failed one, so that it is not tried again as a part."""
    return [backend for backend in backends if failed not in parts_of(backend)]


class SplitBackend:
    """Passes each sequence of a step to one of two backends. An AttentionError names the one that failed."""

    name: ClassVar[str]
    fused: ClassVar[bool] = False
    capabilities: ClassVar[Capabilities]
    of_chunks: ClassVar[type[AttentionBackend]]
    of_decodes: ClassVar[type[AttentionBackend]]

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._chunks = create_backend(self.of_chunks, cache)
        self._decodes = create_backend(self.of_decodes, cache)
        # Whether steps of decodes rotate heads, if that is known without a step.
        self._rotates = False

    def begin(self, batch: AttentionBatch) -> Attention:
        """Return the attention of a step: that of one backend if only it has sequences, otherwise of both.

        If decodes rotate heads as they write them to the cache, so do chunks, whichever backend computes them.
        """
        lengths = np.array(batch.query_lens)
        several, single = np.flatnonzero(lengths > 1), np.flatnonzero(lengths == 1)
        if not several.size:
            return prepare_step(self._decodes, batch)
        if not single.size:
            alone = prepare_step(self._chunks, batch)
            if isinstance(alone, RotatingAttention) or not self._rotates:
                return alone
            parts = [_Part(slice(None), alone)]
        else:
            parts = [
                self._part(self._chunks, batch, several, lengths),
                self._part(self._decodes, batch, single, lengths),
            ]
        rotates = self._rotates or any(isinstance(part.attention, RotatingAttention) for part in parts)
        kind = _RotatingStep if rotates else _Step
        return kind(self._cache, [group.cells for group in batch.groups], parts)

    def _part(self, backend: AttentionBackend, batch: AttentionBatch, chosen: Ints, lengths: Ints) -> _Part:
        rows = _rows_of(lengths, chosen, self._cache.device)
        return _Part(rows, prepare_step(backend, _chosen(batch, chosen, rows)))


class _DividedGraphBackend(SplitBackend):
    """A pair whose decodes can be captured (GraphBackend). It shares prefixes if the backend of decodes does."""

    _decodes: GraphBackend  # type: ignore[assignment]

    def __init__(self, cache: KvCache) -> None:
        super().__init__(cache)
        self._rotates = isinstance(self._decodes.over((), ()), RotatingAttention)
        # An attribute, not a property: from Python 3.12 on a property satisfies a protocol check even if it raises.
        if isinstance(self._decodes, SharingBackend):
            self.prefixes = self._decodes.prefixes

    def over(self, paged: Sequence[PagedBatch], cells: Sequence[Tensor]) -> Attention:
        return self._decodes.over(paged, cells)

    def launch_key(self, sequences: int, longest: int) -> Hashable:
        return self._decodes.launch_key(sequences, longest)

    def launch_lengths(self, sequences: int, most: int) -> Sequence[int]:
        return self._decodes.launch_lengths(sequences, most)


class _Part(NamedTuple):
    """The rows of the step that a backend computes, and its attention for them."""

    rows: Rows
    attention: Attention


class _Step(WritingStep):
    """Writes the keys and values of all rows, then each part attends for its own rows."""

    def __init__(self, cache: KvCache, cells: Sequence[Tensor], parts: Sequence[_Part]) -> None:
        super().__init__(cache, cells)
        self._parts = parts

    def attend(self, layer: int, query: Tensor, sinks: Tensor | None) -> Tensor:
        if len(self._parts) == 1:
            return self._parts[0].attention(layer, query, None, None, sinks)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for rows, attention in self._parts:
            out[rows] = attention(layer, query[rows], None, None, sinks)
        return out


class _RotatingStep(_Step, RotatingWritingStep):
    """A step whose heads are rotated for both parts."""


def _rows_of(lengths: Ints, chosen: Ints, device: torch.device) -> Rows:
    """Return the step's rows of the sequences `chosen`; `lengths`: the number of rows of each sequence of the step."""
    ends = np.cumsum(lengths)
    rows = np.concatenate([np.arange(ends[i] - lengths[i], ends[i]) for i in chosen])
    if rows[-1] - rows[0] + 1 == rows.size:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return to_device(rows, device)


def _chosen(batch: AttentionBatch, chosen: Ints, rows: Rows) -> AttentionBatch:
    """Return the batch of the sequences `chosen`, in their order, in all cache groups; `rows`: theirs in the step."""
    rest: tuple[AttentionBatch, ...] = ()
    for group in reversed(batch.groups):
        tables = group.block_tables
        lengths, contexts, begins, counts = (
            np.array(numbers, dtype=np.int64)[chosen]
            for numbers in (group.query_lens, group.context_lens, tables.begins, tables.counts)
        )
        there = tables.there
        if there is not None:
            numbers = np.concatenate([[0], np.cumsum(lengths), contexts, begins])
            # The first of the three parts is the longer one, with one number more.
            there = OnDevice(there.blocks, *to_device(numbers, there.blocks.device).tensor_split(3))
        own = BlockTables(tables.blocks, begins.tolist(), counts.tolist(), there)
        rest = (AttentionBatch(lengths.tolist(), contexts.tolist(), own, group.cells[rows], rest, batch.longest), *rest)
    return rest[0]
