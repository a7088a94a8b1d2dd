"""Decodes as CUDA graphs: hundreds of launches of a step in one, for each capture size.

Launching a layer's kernels takes the host longer than a small batch takes the device. Graphs are captured before
serving, over numbers, tables and tokens at fixed addresses. A step's rows are copied there, and the graph computes the
rest from them: tokens that are only on the device, changes of block tables, padded tables, lengths and cells. A batch
is padded to its capture size with rows that belong to no sequence and attend to one token of block 0. If a backend
shares prefixes, there are graphs with and without sharing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_kernels.decode_tables.op import decode_tables, write_blocks
from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention.shared_prefix.buffers import SharedBuffers
from plimsoll_runtime.execution.graphs.capture import Capture, Captured, CaptureRequest, batch_buckets, bucket_of
from plimsoll_runtime.execution.inputs.block_tables import DeviceBlockTables
from plimsoll_runtime.execution.inputs.device_state import DeviceState
from plimsoll_runtime.execution.inputs.step_rows import StepRows
from plimsoll_runtime.execution.inputs.upload_buffer import UploadSlice
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.models.layers.attention import Attention

KIND = "decodes"
"""The name of this kind of graph in logs."""

_OF_ROWS, _OF_GROUPS = 4, 4
"""Numbers that a step sends for a row, and in addition for a row in each cache group."""


@runtime_checkable
class GraphBackend(Protocol):
    """An attention backend whose steps may be captured: they never wait for the device."""

    def over(self, paged: Sequence[PagedBatch], cells: Sequence[Tensor]) -> Attention:
        """Return the attention of a step whose tables are on the device already, one for each cache group."""

    def launch_key(self, sequences: int, longest: int) -> Hashable:
        """Return the properties that determine the launches of a batch of decodes; equal keys may share a graph.

        `longest`: tokens of the longest context, over all cache groups.
        """

    def launch_lengths(self, sequences: int, most: int) -> Sequence[int]:
        """Return, for each launch key that contexts of up to `most` tokens have, the longest context with that key, in
        rising order.
        """


class DecodeGraphs:
    """The graphs of a decoder's steps of decodes."""

    def __init__(
        self,
        parts: StepParts,
        backend: GraphBackend,
        state: DeviceState,
        capture: Capture,
        *,
        max_sequences: int,
        max_model_len: int,
    ) -> None:
        cache = parts.cache
        self._parts = parts
        self._backend = backend
        self._state = state
        self._capture = capture
        self._buckets = batch_buckets(max_sequences)
        self._graphs: dict[Hashable, Captured] = {}
        self._longest = min(max_model_len, cache.num_blocks * cache.block_size)
        self._fields = _OF_ROWS + _OF_GROUPS * len(cache.groups)
        self._numbers = torch.zeros(self._fields * max_sequences, dtype=torch.int64, device=cache.device)
        self._starts = torch.arange(max_sequences + 1, dtype=torch.int32, device=cache.device)
        self._shared = SharedBuffers.of(backend, max_sequences, cache.device)

    def wanted(self) -> list[CaptureRequest]:
        """Return a capture request for each capture size and launch key, and one more with sharing if decodes may share
        prefixes.
        """
        return [
            CaptureRequest(
                KIND, bucket, partial(self._add, bucket, longest, shares), partial(self._drop, bucket, longest, shares)
            )
            for bucket in self._buckets
            for longest in self._backend.launch_lengths(bucket, self._longest)
            for shares in ((False, True) if self._shared is not None and bucket > 1 else (False,))
        ]

    def run(self, rows: StepRows) -> Tensor | None:
        """Replay a step, as in StepGraphs. Returns None for a step with a chunk, with more sequences than the largest
        capture size, or whose graph was not captured.
        """
        bucket = bucket_of(rows.slots.size, self._buckets) if rows.decodes else None
        if bucket is None:
            return None
        key = bucket, self._backend.launch_key(bucket, rows.longest)
        graph, sharing = self._graphs.get((*key, False)), self._graphs.get((*key, True))
        if graph is None:
            return None
        buffer, numbers, receive_shared = self._state.upload_buffer, self._padding(bucket), None
        if self._shared is not None and sharing is not None:
            receive_shared = self._shared.add_to(buffer, rows, bucket)
            graph = graph if receive_shared is None else sharing
        more = self._write_rows(rows, numbers)
        numbers_slice = buffer.add(numbers)
        buffer.send()
        if receive_shared is not None:
            receive_shared()
        for tables, rest in more:
            tables.receive(rest)
        self._numbers[: numbers.size].copy_(numbers_slice.on_device)
        graph.replay()
        self._parts.graph_counts.padding += bucket - rows.slots.size
        self._state.mark_sent()
        return graph.out[: rows.slots.size]

    def _padding(self, bucket: int) -> NDArray[np.int64]:
        """Return the integers of a batch that is all padding, [fields, bucket]; `bucket` is the capture size."""
        nobody = [0, self._state.nobody, 0, self._state.nobody]
        nobody += [number for tables in self._state.tables for number in (tables.nobody, 0, tables.nobody, 0)]
        return np.repeat(np.array(nobody, dtype=np.int64)[:, None], bucket, axis=1)

    def _write_rows(
        self, rows: StepRows, numbers: NDArray[np.int64]
    ) -> list[tuple[DeviceBlockTables, UploadSlice | None]]:
        """Write a step's rows over the padding.

        Returns the cache groups whose tables changed in more places than the capture size, with upload slices of their
        own.
        """
        count, bucket = rows.slots.size, numbers.shape[1]
        numbers[:_OF_ROWS, :count] = rows.known, rows.sources, rows.starts, rows.slots
        beside = []
        for number, group in enumerate(rows.groups):
            own = numbers[_OF_ROWS + _OF_GROUPS * number :][:_OF_GROUPS]
            own[:2, :count] = group.begins, group.firsts
            places, blocks = group.kept.missing()
            if places.size <= bucket:
                own[2:, : places.size] = places, blocks
            else:
                beside.append((group.kept, group.kept.add_to(self._state.upload_buffer)))
        return beside

    def _add(self, bucket: int, longest: int, shares: bool) -> None:
        """Capture the graph of `bucket` decodes with contexts of at most `longest` tokens. All rows are padding.

        The work runs before it is captured, over the recurrent states of the padding slot: those of sequences may
        advance only once a step.
        """
        numbers = self._numbers[: self._fields * bucket].view(self._fields, bucket)
        numbers.copy_(torch.from_numpy(self._padding(bucket)))

        def work() -> Tensor:
            known, sources, positions, slots, *of_groups = numbers.unbind()
            paged, cells = [], []
            for number, tables in enumerate(self._state.tables):
                own = of_groups[_OF_GROUPS * number :][:_OF_GROUPS]
                batch, mapping = self._group(tables, positions, own, longest)
                if shares and self._shared is not None:
                    batch = replace(batch, prefixes=self._shared.tables(number, bucket))
                paged.append(batch)
                cells.append(mapping)
            token_ids, attention = self._state.filled(known, sources), self._backend.over(paged, cells)
            return self._parts.states.compute_rows(self._parts.decoder, token_ids, positions, attention, slots)

        self._graphs[bucket, self._backend.launch_key(bucket, longest), shares] = self._capture(work)

    def _drop(self, bucket: int, longest: int, shares: bool) -> None:
        self._graphs.pop((bucket, self._backend.launch_key(bucket, longest), shares), None)

    def _group(
        self, tables: DeviceBlockTables, positions: Tensor, numbers: Sequence[Tensor], longest: int
    ) -> tuple[PagedBatch, Tensor]:
        """Write the changes of a cache group's table, and return its batch and its cells."""
        begins, firsts, places, blocks = numbers
        size, bucket = self._parts.cache.block_size, len(positions)
        write_blocks(tables.on_device, places, blocks)
        made = decode_tables(tables.on_device, positions, begins, firsts, block_size=size, width=-(-longest // size))
        batch = PagedBatch(
            query_starts=self._starts[: bucket + 1],
            context_lens=made.context_lens,
            block_tables=made.block_tables,
            max_query_len=1,
            max_context_len=longest,
            decodes=bucket,
        )
        return batch, made.cells
