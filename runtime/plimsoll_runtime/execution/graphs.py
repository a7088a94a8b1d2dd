"""Decodes as CUDA graphs: a step's hundreds of launches in one, for each size of batch that the limits allow.

Launching a layer's kernels takes the host longer than a small batch takes the device. Graphs are captured before
anybody is served, over buffers that stay where they are; a step copies its rows into them and replays. A batch is
padded to its bucket with rows that attend to one token of block 0, which belongs to nobody.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.block_tables import gathered
from plimsoll_runtime.execution.attention.tables import StepTables, step_tables
from plimsoll_runtime.execution.buckets import batch_buckets, bucket_of
from plimsoll_runtime.execution.capture import Capture, Captured
from plimsoll_runtime.execution.captures import Wanted
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.sent import sent
from plimsoll_runtime.execution.staging import Staging
from plimsoll_runtime.execution.states import StateCache
from plimsoll_runtime.models.attention import Attention
from plimsoll_runtime.models.decoder import Decoder

KIND = "decodes"
"""What these graphs are called."""


@runtime_checkable
class GraphBackend(Protocol):
    """An attention backend whose steps may be captured: they never wait for the device."""

    def over(self, paged: Sequence[PagedBatch], cells: Sequence[Tensor]) -> Attention:
        """A step over tables that are on the device already, of each group of the cache."""

    def launch_key(self, sequences: int, longest: int) -> Hashable:
        """What else of a batch of decodes its launches depend on; equal keys may share a graph.

        `longest`: tokens of the longest context; in no group of the cache there are more.
        """

    def launch_lengths(self, sequences: int, most: int) -> Sequence[int]:
        """Of each key that contexts of up to `most` tokens may have, the longest of them, in rising order."""


class GraphedDecoder:
    """See StepGraphs: a decoder's steps of decodes."""

    def __init__(
        self,
        decoder: Decoder,
        backend: GraphBackend,
        cache: KvCache,
        capture: Capture,
        *,
        max_sequences: int,
        max_model_len: int,
        states: StateCache | None = None,
    ) -> None:
        self._decoder = decoder
        self._backend = backend
        self._cache = cache
        self.capture = capture
        self._buckets = batch_buckets(max_sequences)
        self._graphs: dict[Hashable, Captured] = {}
        width = min(-(-max_model_len // cache.block_size), cache.num_blocks)
        self._longest = min(max_model_len, width * cache.block_size)
        self._token_ids, self._positions = (
            torch.zeros(max_sequences, dtype=torch.int64, device=cache.device) for _ in range(2)
        )
        self._states = states
        self._rows = torch.zeros(max_sequences, dtype=torch.int64, device=cache.device)
        self._groups = [_GroupBuffers(max_sequences, width, cache.device) for _ in cache.groups]
        self._starts = torch.arange(max_sequences + 1, dtype=torch.int32, device=cache.device)
        self._staging = Staging(2 * max_sequences * len(cache.groups), cache.device)

    @property
    def captured(self) -> int:
        """How many graphs there are."""
        return len(self._graphs)

    def wanted(self) -> list[Wanted]:
        """See StepGraphs: one for each bucket and each key of its launches."""
        return [
            Wanted(KIND, bucket, partial(self._add, bucket, longest))
            for bucket in self._buckets
            for longest in self._backend.launch_lengths(bucket, self._longest)
        ]

    def run(
        self, token_ids: Tensor, positions: Tensor, batch: AttentionBatch, slots: Sequence[int] = ()
    ) -> Tensor | None:
        """See StepGraphs. There is none of a step with a chunk in it, or with more sequences than the buckets have."""
        sequences = len(batch.query_lens)
        bucket = bucket_of(sequences, self._buckets)
        if bucket is None or max(batch.query_lens) > 1:
            return None
        groups = batch.groups
        longest = batch.longest or max(max(group.context_lens) for group in groups)
        graph = self._graphs.get((bucket, self._backend.launch_key(bucket, longest)))
        if graph is None:
            return None
        tables = [step_tables(group, self._cache.block_size) for group in groups]
        self._fill(token_ids, positions, groups, tables, bucket)
        self._point_at(slots, bucket)
        graph.replay()
        return graph.out[:sequences]

    def _fill(
        self,
        token_ids: Tensor,
        positions: Tensor,
        groups: Sequence[AttentionBatch],
        tables: Sequence[StepTables],
        bucket: int,
    ) -> None:
        """Put a step where the graphs read it."""
        rows = len(token_ids)
        targets = [(self._token_ids, token_ids), (self._positions, positions)]
        targets += [(own.cells, group.cells) for own, group in zip(self._groups, groups, strict=True)]
        for buffer, values in targets:
            buffer[:rows].copy_(values, non_blocking=True)
            buffer[rows:bucket].zero_()
        parts = [part for each in tables for part in (each.context_lens, each.first_blocks)]
        numbers = self._staging.send(np.stack(parts))
        for number, (own, group, each) in enumerate(zip(self._groups, groups, tables, strict=True)):
            contexts, begins = numbers[2 * number : 2 * number + 2]
            own.contexts[:rows].copy_(contexts)
            own.contexts[rows:bucket].fill_(1)
            width = int(each.num_blocks.max())
            own.tables[:rows, :width] = gathered(group.block_tables.on(self._cache.device), begins.long(), width)
            own.tables[rows:bucket, :1].zero_()

    def _point_at(self, slots: Sequence[int], bucket: int) -> None:
        """Say which rows of the states the next replay reads and writes: those of the slots, for padding nobody's."""
        if self._states is not None:
            rows = [*slots, *[self._states.nobody] * (bucket - len(slots))]
            self._rows[:bucket].copy_(sent(np.array(rows), self._cache.device))

    def _add(self, bucket: int, longest: int) -> None:
        """Capture a graph over the buffers' first rows, which are as padding is before there was a step.

        The work runs before it is captured, over the states of nobody: those of sequences may advance only once a step.
        """
        self._point_at((), bucket)
        paged = [
            PagedBatch(
                query_starts=self._starts[: bucket + 1],
                context_lens=own.contexts[:bucket],
                block_tables=own.tables[:bucket],
                max_query_len=1,
                max_context_len=longest,
                decodes=bucket,
            )
            for own in self._groups
        ]
        token_ids, positions = self._token_ids[:bucket], self._positions[:bucket]
        attention = self._backend.over(paged, [own.cells[:bucket] for own in self._groups])

        def work() -> Tensor:
            if self._states is None:
                return self._decoder(token_ids, positions, attention)
            states = self._states.over(self._rows[:bucket], positions)
            hidden = self._decoder(token_ids, positions, attention, states)
            states.commit()
            return hidden

        self._graphs[bucket, self._backend.launch_key(bucket, longest)] = self.capture(work)


class _GroupBuffers:
    """What graphs read of a group's tables: where they stay, step after step."""

    def __init__(self, sequences: int, width: int, device: torch.device) -> None:
        self.cells = torch.zeros(sequences, dtype=torch.int64, device=device)
        self.contexts = torch.ones(sequences, dtype=torch.int32, device=device)
        self.tables = torch.zeros(sequences, width, dtype=torch.int32, device=device)
