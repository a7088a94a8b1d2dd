"""CUDA graphs of ranks without a GPU: work that is recorded and repeated, and sums that a capture only records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from kernel_support.recorder import Recorder
from kernel_support.rows import state_of
from model_support.random_weights import RandomWeights, reading
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables
from plimsoll_runtime.execution.graphs.capture import Captured, CaptureRequest, FirstOf
from plimsoll_runtime.execution.graphs.decode import DecodeGraphs
from plimsoll_runtime.execution.graphs.piecewise import PiecewiseDecoder
from plimsoll_runtime.execution.inputs.step_rows import StepRows
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.parallel.captures import RankCapture, RankForwardPass
from plimsoll_runtime.parallel.collectives import Exchanging
from plimsoll_runtime.parallel.gpu_member import GpuMemberRunner
from plimsoll_runtime.parallel.layout import Layout
from plimsoll_runtime.parallel.member import CountedCollectives
from plimsoll_runtime.parallel.rank import Rank
from plimsoll_runtime.parallel.shard import shard

CPU = torch.device("cpu")
BLOCK, BLOCKS, SLOTS, LONGEST, ROWS = 4, 40, 4, 64, 24
Phase = Literal["", "capture", "replay"]


class RankRecorder(Recorder):
    """The graphs of one rank. As CudaCapture, it runs the work before it records it.

    `graphs`: the widths of the sums in each captured graph. `replays`: the sums that replays have made.
    """

    def __init__(self, size: int = 0) -> None:
        super().__init__(size=size)
        self.phase: Phase = ""
        self.graphs: list[list[int]] = []
        self.replays = 0
        self.fails_at_sum: int | None = None

    def __call__(self, work: Callable[[], Tensor]) -> Captured:
        work()
        self.graphs.append([])
        self.phase = "capture"
        try:
            captured = super().__call__(work)
        except BaseException:
            self.graphs.pop()
            raise
        finally:
            self.phase = ""

        def replay() -> None:
            self.phase = "replay"
            captured.replay()
            self.phase = ""

        return Captured(captured.out, replay)


class DeviceExchange:
    """The exchange of a rank whose captures record sums, for which they wait for no other rank."""

    device = CPU
    exchange = None

    def __init__(self, group: Exchanging, recorder: RankRecorder) -> None:
        self._group = group
        self._recorder = recorder

    def add_up(self, part: Tensor) -> None:
        recorder = self._recorder
        if recorder.phase != "capture":
            recorder.replays += recorder.phase == "replay"
            self._group.add_up(part)
            return
        if recorder.fails_at_sum == len(recorder.graphs[-1]):
            raise RuntimeError("operation not permitted when stream is capturing")
        recorder.graphs[-1].append(part.shape[-1])

    def gathered(self, data: bytes) -> list[bytes]:
        return self._group.gathered(data)


class Splitting(ReferenceBackend):
    """A backend whose steps may be captured. With several key heads, it has two graphs for each number of decodes.

    `fails_at`: a layer for which there is too little memory.
    """

    name: ClassVar[str] = "splitting"

    def __init__(self, cache: KvCache) -> None:
        super().__init__(cache)
        self._has_two = cache.shapes[0].kv_heads > 1
        self.fails_at: int | None = None

    def begin(self, batch: AttentionBatch) -> Attention:
        inner = super().begin(batch)

        def attention(
            layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
        ) -> Tensor:
            if layer == self.fails_at:
                raise torch.OutOfMemoryError("no memory for the attention")
            return inner(layer, query, key, value)

        return attention

    def over(self, paged: Sequence[PagedBatch], cells: Sequence[Tensor]) -> Attention:
        [group], [own] = paged, cells
        begin = super().begin

        def attention(
            layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
        ) -> Tensor:
            contexts, tables = group.context_lens.tolist(), BlockTables.of(group.block_tables.tolist())
            return begin(AttentionBatch([1] * len(own), contexts, tables, own))(layer, query, key, value)

        return attention

    def launch_key(self, sequences: int, longest: int) -> bool:
        return self._has_two and longest > LONGEST // 2

    def launch_lengths(self, sequences: int, most: int) -> Sequence[int]:
        return [LONGEST // 2, most] if self._has_two else [most]


class FailingGraphs(FirstOf):
    """Graphs of which some cannot be captured. `failing`: their kinds and rows, and the sum at which each fails."""

    def __init__(self, kinds: Any, recorder: RankRecorder, failing: dict[tuple[str, int], int | Exception]) -> None:
        super().__init__(kinds)
        self._recorder = recorder
        self._failing = failing

    def wanted(self) -> list[CaptureRequest]:
        return [self._of(each) for each in super().wanted()]

    def _of(self, request: CaptureRequest) -> CaptureRequest:
        failing = self._failing.get((request.kind, request.rows))
        if failing is None:
            return request

        def add() -> None:
            if isinstance(failing, Exception):
                raise failing
            self._recorder.fails_at_sum = failing
            try:
                request.add()
            finally:
                self._recorder.fails_at_sum = None

        return CaptureRequest(request.kind, request.rows, add, request.drop)


class Observed(RankForwardPass):
    """A forward pass that keeps the hidden states of its steps."""

    hidden: list[Tensor]

    def run_rows(self, rows: StepRows) -> Tensor:
        found = super().run_rows(rows)
        self.hidden.append(found.clone())
        return found


class NoEvent:
    """The event of a device that has computed a step when it is launched."""

    def record(self) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""


class GraphRank:
    """A rank with graphs: its recorder, its forward pass and its runner."""

    def __init__(
        self,
        group: Exchanging,
        number: int,
        size: int,
        whole: Program,
        failing: dict[tuple[str, int], int | Exception] | None = None,
        graph_bytes: int = 0,
    ) -> None:
        self.recorder = RankRecorder(graph_bytes)
        self.collectives = CountedCollectives(DeviceExchange(group, self.recorder))
        self.part = shard(whole, size, number)
        decoder = TorchDecoder(self.part, reading(self.part, RandomWeights(whole), torch.float32), self.collectives)
        cache = KvCache(self.part.facts.attention, BLOCKS, BLOCK, torch.float32, CPU)
        for tensor in (*cache.keys, *cache.values):
            tensor.zero_()
        state, parts = state_of(cache, SLOTS, LONGEST), StepParts(decoder, cache)
        self.capture = RankCapture(self.recorder, self.collectives, lambda: self.recorder.phase != "")
        self.decodes: DecodeGraphs
        self.pieces: PiecewiseDecoder

        def graphs_of(backend: Any) -> FirstOf:
            self.decodes = DecodeGraphs(parts, backend, state, self.capture, max_sequences=SLOTS, max_model_len=LONGEST)
            self.pieces = PiecewiseDecoder(decoder, backend, cache, self.capture, max_rows=ROWS)
            return FailingGraphs([self.decodes, self.pieces], self.recorder, failing or {})

        rank = Rank(number, Layout(size), size, group, self.collectives)
        self.forward_pass = Observed(parts, [Splitting], graphs_of, rank)
        self.forward_pass.hidden = []
        self.runner = GpuMemberRunner(self.forward_pass, state, NoEvent())
