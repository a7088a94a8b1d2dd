"""Steps with chunks as graphs of the pieces between the layers' attention, which is launched as it is without graphs.

How attention is launched follows from the lengths of a step's sequences. What lies between depends on the number of
rows alone: a piece is captured for some numbers of rows, and a step is padded to the next one of them. Values that go
from a piece to attention, or past it, lie in buffers that all sizes share. Attention reads and writes only the step's
own rows of them, so nothing of padding gets into the cache. Each row is computed by itself, so it does not matter what
padding holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from plimsoll_runtime.execution.attention.base import AttentionBackend, prepare_step
from plimsoll_runtime.execution.graphs.capture import Capture, CaptureRequest, bucket_of, row_buckets
from plimsoll_runtime.execution.inputs.step_rows import StepRows
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.decoder import Stage, TorchDecoder, walk
from plimsoll_runtime.models.layers.attention import NormOfHeads
from plimsoll_runtime.models.ops.op import Step

KIND = "rows with chunks"
"""What these graphs are called."""

MOST_ROWS = 512
"""Of a step with graphs. With more, a layer's products take the device longer than its launches take the host, and to
pad them would cost more than that."""


class Segment(NamedTuple):
    """Stages of one kind, one after the other: a layer's attention, or what lies between two of these.

    `reads`: places of values that it has from before; `writes`: of those that it leaves for later ones.
    """

    stages: Sequence[Stage]
    attends: bool
    reads: Sequence[int]
    writes: Sequence[int]


def segments(stages: Sequence[Stage]) -> Iterator[Segment]:
    """A decoder's stages, cut before and after each attention."""
    there: set[int] = set()
    for attends, run in groupby(stages, lambda stage: stage.attends):
        own = list(run)
        before = frozenset(there)
        read: set[int] = set()
        written: set[int] = set()
        for stage in own:
            read |= set(stage.reads) & (before - written)
            written |= set(stage.writes)
            there = (there | set(stage.writes)) - set(stage.done)
        yield Segment(own, attends, sorted(read), sorted(written & there))


class PiecewiseDecoder:
    """See StepGraphs: a decoder's steps of few rows, with chunks or without. It has no recurrent layers."""

    def __init__(
        self, decoder: TorchDecoder, backend: AttentionBackend, cache: KvCache, capture: Capture, *, max_rows: int
    ) -> None:
        """`max_rows`: of the largest step that there may be. Raises ValueError for a decoder that this is not for."""
        if decoder.program.facts.states:
            raise ValueError("recurrent layers take rows apart by sequences, whose lengths only the host knows")
        self._capture = capture
        self._decoder = decoder
        self._backend = backend
        self._shapes = _Shapes(cache)
        self._buckets = row_buckets(min(max_rows, MOST_ROWS))
        self._rows = self._buckets[-1]
        self._segments = list(segments(decoder.stages))
        self._token_ids, self._positions = torch.zeros(2, self._rows, dtype=torch.int64, device=cache.device)
        self._turns = decoder.turns(self._positions)
        self._buffers: dict[tuple[object, ...], Tensor] = {}
        self._passes: dict[int, list[Callable[[Step], None]]] = {}
        self._hidden = torch.empty(0)

    @property
    def captured(self) -> int:
        """For how many numbers of rows there are graphs."""
        return len(self._passes)

    def wanted(self) -> list[CaptureRequest]:
        """See StepGraphs: one for each number of rows, which is a graph for each piece."""
        return [CaptureRequest(KIND, bucket, partial(self._add, bucket)) for bucket in self._buckets]

    def run(self, rows: StepRows) -> Tensor | None:
        """See StepGraphs. Raises AttentionError where the backend fails."""
        count = rows.known.size
        bucket = bucket_of(count, self._buckets)
        parts = None if bucket is None else self._passes.get(bucket)
        if parts is None:
            return None
        inputs = rows.inputs(bucket)
        attention = prepare_step(self._backend, inputs.batch)
        for buffer, values in ((self._token_ids, inputs.token_ids), (self._positions, inputs.positions)):
            buffer[:bucket].copy_(values)
        turns = {rope: (cos[:count], sin[:count]) for rope, (cos, sin) in self._turns.items()}
        step = Step(self._token_ids[:count], self._positions[:count], turns, attention)
        for part in parts:
            part(step)
        return self._hidden[:count]

    def _add(self, bucket: int) -> None:
        """Capture the pieces for so many rows. Raises RuntimeError for a value that does not have a row for each."""
        turns = {rope: (cos[:bucket], sin[:bucket]) for rope, (cos, sin) in self._turns.items()}
        step = Step(self._token_ids[:bucket], self._positions[:bucket], turns, self._shapes)
        values: dict[int, Tensor] = {}
        parts = [self._captured(partial(self._turn, bucket))] if self._turns else []
        for segment in self._segments:
            inside = {place: values[place] for place in segment.reads}
            found = self._computed(segment, step, inside)
            if odd := [tuple(value.shape) for value in found.values() if len(value) != bucket]:
                raise RuntimeError(f"{bucket} rows became {odd}, which cannot be padded")
            targets = {place: self._buffer(place, value) for place, value in found.items()}
            if segment.attends:
                parts.append(partial(self._attend, segment, inside, targets))
            else:
                parts.append(self._captured(partial(self._work, segment, step, inside, targets)))
            values |= {place: buffer[:bucket] for place, buffer in targets.items()}
        self._hidden = self._buffer(self._decoder.count - 1, values[self._decoder.count - 1])
        self._passes[bucket] = parts

    def _captured(self, work: Callable[[], Tensor]) -> Callable[[Step], None]:
        replay = self._capture(work).replay
        return lambda step: replay()

    def _turn(self, bucket: int) -> Tensor:
        """The work of the first piece: cosines and sines."""
        for rope, found in self._decoder.turns(self._positions[:bucket]).items():
            for buffer, values in zip(self._turns[rope], found, strict=True):
                buffer[:bucket].copy_(values)
        return buffer

    def _work(self, segment: Segment, step: Step, inside: dict[int, Tensor], targets: dict[int, Tensor]) -> Tensor:
        """The work of a piece: what later segments read is copied to where they read it."""
        found = self._computed(segment, step, inside)
        own = {buffer.untyped_storage().data_ptr() for buffer in self._buffers.values()}
        # What is only another view of a buffer must not be overwritten before it is copied.
        found = {p: v.clone() if v.untyped_storage().data_ptr() in own else v for p, v in found.items()}
        for place, value in found.items():
            targets[place][: len(value)].copy_(value)
        return next(iter(targets.values()))

    def _attend(self, segment: Segment, inside: dict[int, Tensor], targets: dict[int, Tensor], step: Step) -> None:
        """The step's own rows, attended to as they are without graphs."""
        rows = len(step.token_ids)
        found = self._computed(segment, step, {place: value[:rows] for place, value in inside.items()})
        for place, value in found.items():
            targets[place][:rows].copy_(value)

    def _computed(self, segment: Segment, step: Step, inside: dict[int, Tensor]) -> dict[int, Tensor]:
        """What a segment leaves for later ones, by place."""
        values: list[Tensor | None] = [None] * self._decoder.count
        for place, value in inside.items():
            values[place] = value
        walk(segment.stages, step, values)
        found = ((place, values[place]) for place in segment.writes)
        return {place: value for place, value in found if value is not None}

    def _buffer(self, place: int, value: Tensor) -> Tensor:
        """Where values like this one of a place lie, for as many rows as there may be."""
        key = (place, value.shape[1:], value.dtype)
        if key not in self._buffers:
            self._buffers[key] = torch.zeros(self._rows, *value.shape[1:], dtype=value.dtype, device=value.device)
        return self._buffers[key]


class _Shapes:
    """An attention that says how large its results are: while pieces are captured nothing is read or written."""

    def __init__(self, cache: KvCache) -> None:
        self._heads = [shape.heads for shape in cache.shapes]

    def __call__(
        self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        return torch.zeros(query.shape, dtype=query.dtype, device=query.device)

    def of_heads(
        self,
        layer: int,
        heads: Tensor,
        cos: Tensor,
        sin: Tensor,
        norm: NormOfHeads | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        return heads.new_zeros(len(heads), self._heads[layer], heads.shape[2])
