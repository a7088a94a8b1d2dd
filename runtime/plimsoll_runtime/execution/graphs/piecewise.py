"""Steps with chunks as graphs of the pieces between the layers' attention; attention itself is launched without graphs.

The launches of attention depend on the lengths of a step's sequences, but the work between depends on the number of
rows only. So a piece is captured for some numbers of rows, and a step is padded to the next of them. Values that pass
from a piece to attention or to a later piece are in buffers that all sizes share. Attention only reads and writes the
step's own rows of them, so padding never enters the cache. Each row is computed independently, so the content of
padding has no effect.
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
from plimsoll_runtime.execution.parts import GraphCounts
from plimsoll_runtime.models.decoder import Stage, TorchDecoder, walk
from plimsoll_runtime.models.layers.attention import NormOfHeads
from plimsoll_runtime.models.ops.op import Step

KIND = "rows of steps with chunks"
"""The name of this kind of graph in logs."""

MOST_ROWS = 512
"""The most rows of a step with graphs. With more, a layer's matrix products take the device longer than its launches
take the host, and padding them would cost more than the launches.
"""


class Segment(NamedTuple):
    """Consecutive stages of one kind: a layer's attention, or the work between two of these.

    `reads`: indices of values from earlier segments; `writes`: indices of values for later ones.
    """

    stages: Sequence[Stage]
    attends: bool
    reads: Sequence[int]
    writes: Sequence[int]


def segments(stages: Sequence[Stage]) -> Iterator[Segment]:
    """Yield a decoder's stages, cut before and after each attention."""
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
    """The graphs of a decoder's steps of few rows, with chunks or without. The decoder has no recurrent layers."""

    def __init__(
        self,
        decoder: TorchDecoder,
        backend: AttentionBackend,
        cache: KvCache,
        capture: Capture,
        *,
        max_rows: int,
        counts: GraphCounts | None = None,
    ) -> None:
        """`max_rows`: of the largest possible step. `counts`: gets the rows of padding.

        Raises ValueError for a decoder with recurrent layers.
        """
        if decoder.program.facts.states:
            raise ValueError(
                "piecewise graphs do not support recurrent layers, which need lengths that are only on the host"
            )
        self._capture = capture
        self._counts = counts or GraphCounts()
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

    def wanted(self) -> list[CaptureRequest]:
        """Return a capture request for each capture size; each makes a graph for every piece."""
        return [
            CaptureRequest(KIND, bucket, partial(self._add, bucket), partial(self._drop, bucket))
            for bucket in self._buckets
        ]

    def run(self, rows: StepRows) -> Tensor | None:
        """Replay a step, as in StepGraphs; None if its capture size was not captured. Raises AttentionError if the
        backend fails.
        """
        count = rows.known.size
        bucket = bucket_of(count, self._buckets)
        if bucket is None or (parts := self._passes.get(bucket)) is None:
            return None
        inputs = rows.inputs(bucket)
        attention = prepare_step(self._backend, inputs.batch)
        for buffer, values in ((self._token_ids, inputs.token_ids), (self._positions, inputs.positions)):
            buffer[:bucket].copy_(values)
        turns = {rope: (cos[:count], sin[:count]) for rope, (cos, sin) in self._turns.items()}
        step = Step(
            self._token_ids[:count], self._positions[:count], turns, attention, collectives=self._decoder.collectives
        )
        for part in parts:
            part(step)
        self._counts.padding += bucket - count
        return self._hidden[:count]

    def _add(self, bucket: int) -> None:
        """Capture the pieces for `bucket` rows. Raises RuntimeError if a value does not have one entry for each row."""
        turns = {rope: (cos[:bucket], sin[:bucket]) for rope, (cos, sin) in self._turns.items()}
        step = Step(
            self._token_ids[:bucket],
            self._positions[:bucket],
            turns,
            self._shapes,
            collectives=self._decoder.collectives,
        )
        values: dict[int, Tensor] = {}
        parts = [self._captured(partial(self._turn, bucket))] if self._turns else []
        for segment in self._segments:
            inside = {place: values[place] for place in segment.reads}
            found = self._computed(segment, step, inside)
            if odd := [tuple(value.shape) for value in found.values() if len(value) != bucket]:
                raise RuntimeError(
                    f"the capture of {bucket} rows gave values of the shapes {odd}; each must have {bucket} rows to be "
                    "padded"
                )
            targets = {place: self._buffer(place, value) for place, value in found.items()}
            if segment.attends:
                parts.append(partial(self._attend, segment, inside, targets))
            else:
                parts.append(self._captured(partial(self._work, segment, step, inside, targets)))
            values |= {place: buffer[:bucket] for place, buffer in targets.items()}
        self._hidden = self._buffer(self._decoder.count - 1, values[self._decoder.count - 1])
        self._passes[bucket] = parts

    def _drop(self, bucket: int) -> None:
        self._passes.pop(bucket, None)

    def _captured(self, work: Callable[[], Tensor]) -> Callable[[Step], None]:
        replay = self._capture(work).replay
        return lambda step: replay()

    def _turn(self, bucket: int) -> Tensor:
        """Compute the rotary embeddings' cosines and sines of the step's positions: the work of the first piece."""
        for rope, found in self._decoder.turns(self._positions[:bucket]).items():
            for buffer, values in zip(self._turns[rope], found, strict=True):
                buffer[:bucket].copy_(values)
        return buffer

    def _work(self, segment: Segment, step: Step, inside: dict[int, Tensor], targets: dict[int, Tensor]) -> Tensor:
        """Compute a piece, and copy the values that later segments read to their buffers."""
        found = self._computed(segment, step, inside)
        own = {buffer.untyped_storage().data_ptr() for buffer in self._buffers.values()}
        # A value that is a view of a buffer must not be overwritten before it is copied.
        found = {p: v.clone() if v.untyped_storage().data_ptr() in own else v for p, v in found.items()}
        for place, value in found.items():
            targets[place][: len(value)].copy_(value)
        return next(iter(targets.values()))

    def _attend(self, segment: Segment, inside: dict[int, Tensor], targets: dict[int, Tensor], step: Step) -> None:
        """Attend for the step's own rows, without graphs."""
        rows = len(step.token_ids)
        found = self._computed(segment, step, {place: value[:rows] for place, value in inside.items()})
        for place, value in found.items():
            targets[place][:rows].copy_(value)

    def _computed(self, segment: Segment, step: Step, inside: dict[int, Tensor]) -> dict[int, Tensor]:
        """Compute a segment and return the values for later ones, by index."""
        values: list[Tensor | None] = [None] * self._decoder.count
        for place, value in inside.items():
            values[place] = value
        walk(segment.stages, step, values)
        found = ((place, values[place]) for place in segment.writes)
        return {place: value for place, value in found if value is not None}

    def _buffer(self, place: int, value: Tensor) -> Tensor:
        """Return the buffer for the values of an index, shaped like `value` but with the most rows; created at first
        use.
        """
        key = (place, value.shape[1:], value.dtype)
        if key not in self._buffers:
            self._buffers[key] = torch.zeros(self._rows, *value.shape[1:], dtype=value.dtype, device=value.device)
        return self._buffers[key]


class _Shapes:
    """Stands for attention while pieces are captured: returns zeros of the right shape and reads or writes nothing."""

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
