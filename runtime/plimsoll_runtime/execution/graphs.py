"""Decodes as CUDA graphs: a step's hundreds of launches in one, for each size of batch that occurs.

Launching a layer's kernels takes the host longer than a small batch takes the device. A graph is captured when its size
first occurs, over buffers that stay where they are; a step copies its rows into them and replays. A batch is padded to
its bucket with rows that attend to one token of block 0, which belongs to nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.tables import StepTables, step_tables
from plimsoll_runtime.execution.buckets import batch_buckets, bucket_of
from plimsoll_runtime.execution.capture import Capture, Captured
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.staging import Staging
from plimsoll_runtime.execution.states import StateCache
from plimsoll_runtime.models.attention import Attention
from plimsoll_runtime.models.decoder import Decoder

logger = logging.getLogger(__name__)


@runtime_checkable
class GraphBackend(Protocol):
    """An attention backend whose steps may be captured: they never wait for the device."""

    def over(self, paged: PagedBatch, slot_mapping: Tensor) -> Attention:
        """A step over tables that are on the device already."""

    def launch_key(self, sequences: int, longest: int) -> Hashable:
        """What else of a batch of decodes its launches depend on; equal keys may share a graph."""


class GraphedDecoder:
    """A decoder's steps of decodes, captured and replayed."""

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
        self._capture: Capture | None = capture
        self._buckets = batch_buckets(max_sequences)
        self._graphs: dict[Hashable, Captured] = {}
        width = min(-(-max_model_len // cache.block_size), cache.num_blocks)
        self._token_ids, self._positions, self._slots = (
            torch.zeros(max_sequences, dtype=torch.int64, device=cache.device) for _ in range(3)
        )
        self._states = states
        self._rows = torch.zeros(max_sequences, dtype=torch.int64, device=cache.device)
        self._contexts = torch.ones(max_sequences, dtype=torch.int32, device=cache.device)
        self._tables = torch.zeros(max_sequences, width, dtype=torch.int32, device=cache.device)
        self._starts = torch.arange(max_sequences + 1, dtype=torch.int32, device=cache.device)
        self._staging = Staging(max_sequences * (width + 1), cache.device)

    @property
    def captured(self) -> int:
        """How many graphs there are."""
        return len(self._graphs)

    def run(
        self, token_ids: Tensor, positions: Tensor, batch: AttentionBatch, slots: Sequence[int] = ()
    ) -> Tensor | None:
        """Hidden states `[T, hidden]` of a step whose T rows are decodes, valid until the next call.

        token_ids and positions: int64 `[T]`, on any device; `slots`: see ForwardPass. None: this step is none for a
        graph (a chunk is in it, it is larger than all buckets, or capturing failed before); then the caller computes
        it as it would without graphs.
        """
        sequences = len(batch.query_lens)
        bucket = bucket_of(sequences, self._buckets)
        if bucket is None or max(batch.query_lens) > 1:
            return None
        tables = step_tables(batch, self._cache.block_size, self._cache.num_blocks)
        longest = int(tables.context_lens.max())
        key = (bucket, self._backend.launch_key(bucket, longest))
        if key not in self._graphs and self._capture is None:
            return None
        self._fill(token_ids, positions, batch.slot_mapping, tables, bucket)
        if key not in self._graphs and not self._add(key, bucket, longest):
            return None
        self._point_at(slots, bucket)
        graph = self._graphs[key]
        graph.replay()
        return graph.out[:sequences]

    def _fill(self, token_ids: Tensor, positions: Tensor, slots: Tensor, tables: StepTables, bucket: int) -> None:
        """Put a step where the graphs read it."""
        rows, width = len(tables.context_lens), int(tables.num_blocks.max())
        for buffer, values in ((self._token_ids, token_ids), (self._positions, positions), (self._slots, slots)):
            buffer[:rows].copy_(values, non_blocking=True)
            buffer[rows:bucket].zero_()
        sent = self._staging.send(np.concatenate([tables.context_lens, tables.padded(width).reshape(-1)]))
        self._contexts[:rows].copy_(sent[:rows])
        self._contexts[rows:bucket].fill_(1)
        self._tables[:rows, :width].copy_(sent[rows:].view(rows, width))
        self._tables[rows:bucket, :1].zero_()

    def _point_at(self, slots: Sequence[int], bucket: int) -> None:
        """Say which rows of the states the next replay reads and writes: those of the slots, for padding nobody's."""
        if self._states is not None:
            rows = [*slots, *[self._states.nobody] * (bucket - len(slots))]
            self._rows[:bucket].copy_(torch.tensor(rows))

    def _add(self, key: Hashable, bucket: int, longest: int) -> bool:
        """Capture a graph over the buffers' first rows; after a failure there is one warning, and no further try.

        The work runs before it is captured, over the states of nobody: those of sequences may advance only once a step.
        """
        self._point_at((), bucket)
        paged = PagedBatch(
            query_starts=self._starts[: bucket + 1],
            context_lens=self._contexts[:bucket],
            block_tables=self._tables[:bucket],
            max_query_len=1,
            max_context_len=longest,
            decodes=bucket,
        )
        token_ids, positions = self._token_ids[:bucket], self._positions[:bucket]
        attention = self._backend.over(paged, self._slots[:bucket])
        assert self._capture is not None

        def work() -> Tensor:
            if self._states is None:
                return self._decoder(token_ids, positions, attention)
            states = self._states.over(self._rows[:bucket], positions)
            hidden = self._decoder(token_ids, positions, attention, states)
            states.commit()
            return hidden

        try:
            self._graphs[key] = self._capture(work)
        except RuntimeError as error:
            logger.warning(
                "no CUDA graph for %d decodes (%s): sizes without one are launched kernel by kernel", bucket, error
            )
            self._capture = None
            return False
        return True
