"""Times a torch decoder op by op, with marks that are inserted between its ops only while it is profiled."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.profiler import record_function

from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.layers.attention import Attention, NormOfHeads, RotatingAttention
from plimsoll_runtime.models.layers.states import States
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.op import Run
from plimsoll_runtime.models.program import Program

RANGE_PREFIX = "plimsoll::"


class OpListener(Protocol):
    """Receives the kind of each op as it starts."""

    def switch(self, kind: OpKind | None) -> None:
        """End the current op and start an op of this kind; None starts none."""


class OpTimer(OpListener, Protocol):
    """A listener that measures the seconds of each op."""

    def take_seconds(self) -> Mapping[str, float]:
        """Return the seconds since the last call, by kind."""


class HostOpTimer:
    """Times ops that finish before their call returns."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._kind: OpKind | None = None
        self._since = 0.0

    def switch(self, kind: OpKind | None) -> None:
        now = self._clock()
        if self._kind is not None:
            self._seconds[self._kind] += now - self._since
        self._kind, self._since = kind, now

    def take_seconds(self) -> Mapping[str, float]:
        taken, self._seconds = dict(self._seconds), defaultdict(float)
        return taken


class CudaOpTimer:
    """Times ops on the device's stream. Idle time until the next launch counts for the op before."""

    def __init__(self) -> None:
        self._marks: list[tuple[OpKind | None, Any]] = []

    def switch(self, kind: OpKind | None) -> None:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append((kind, event))

    def take_seconds(self) -> Mapping[str, float]:
        """Wait for the device, then return the seconds since the last call, by kind."""
        torch.cuda.synchronize()
        seconds: defaultdict[str, float] = defaultdict(float)
        for (kind, start), (_, end) in pairwise(self._marks):
            if kind is not None:
                seconds[kind] += start.elapsed_time(end) / 1e3
        self._marks.clear()
        return seconds


class OpRanges:
    """Adds the ops as ranges to a trace of torch's profiler."""

    def __init__(self) -> None:
        self._open: Any = None

    def switch(self, kind: OpKind | None) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = None if kind is None else record_function(RANGE_PREFIX + kind)
        if self._open is not None:
            self._open.__enter__()


class MarkedDecoder:
    """A torch decoder that reports the start of each op. The stages of the decoder passed in are wrapped in place."""

    def __init__(self, decoder: TorchDecoder, timer: OpTimer) -> None:
        self.program = decoder.program
        self.dtype = decoder.dtype
        self.weight_bytes = decoder.weight_bytes
        self._decoder = decoder
        self._timer = timer
        self._listeners: tuple[OpListener, ...] = (timer,)
        for stage in decoder.stages:
            if stage.kind is not OpKind.EMBED:  # __call__ marks it, because it starts before the first stage
                stage.run = self._marked(stage.run, stage.kind)

    @property
    def outline(self) -> Program:
        return self.program

    def __call__(
        self, token_ids: Tensor, positions: Tensor, attention: Attention, states: States | None = None
    ) -> Tensor:
        marked: Attention = _MarkedAttention(self, attention)
        if isinstance(attention, RotatingAttention):
            marked = _MarkedRotatingAttention(self, attention)
        self.switch(OpKind.EMBED)
        try:
            return self._decoder(token_ids, positions, marked, states)
        finally:
            self.switch(None)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._decoder.logits(hidden)

    def take_seconds(self) -> Mapping[str, float]:
        return self._timer.take_seconds()

    def show_ranges(self, shown: bool) -> None:
        """Set whether torch's profiler gets the ops as ranges."""
        self._listeners = (self._timer, OpRanges()) if shown else (self._timer,)

    def switch(self, kind: OpKind | None) -> None:
        """Report the start of an op to all listeners."""
        for listener in self._listeners:
            listener.switch(kind)

    def _marked(self, run: Run, kind: OpKind) -> Run:
        def marked(*arguments: Any) -> Tensor | tuple[Tensor, ...]:
            self.switch(kind)
            return run(*arguments)

        return marked


class _MarkedAttention:
    """Attention that reports its start to the decoder."""

    def __init__(self, decoder: MarkedDecoder, attention: Attention) -> None:
        self._decoder = decoder
        self._attention = attention

    def __call__(
        self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        self._decoder.switch(OpKind.ATTENTION)
        return self._attention(layer, query, key, value, sinks)


class _MarkedRotatingAttention(_MarkedAttention):
    """Attention that also rotates heads: rotation counts as attention."""

    def __init__(self, decoder: MarkedDecoder, attention: RotatingAttention) -> None:
        super().__init__(decoder, attention)
        self._rotating = attention

    def of_heads(
        self,
        layer: int,
        heads: Tensor,
        cos: Tensor,
        sin: Tensor,
        norm: NormOfHeads | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        self._decoder.switch(OpKind.ATTENTION)
        return self._rotating.of_heads(layer, heads, cos, sin, norm, sinks)
