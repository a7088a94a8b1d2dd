"""A rank's side of steps: it computes the plans that arrive, all ranks the same ones in the same order."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from plimsoll_runtime.engine.core import Runner
from plimsoll_runtime.engine.protocol.plan import SequenceOutput, SlotInit, StepPlan, StepResult
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError
from plimsoll_runtime.engine.step_timing import Timeline
from plimsoll_runtime.execution.forward import ForwardPass
from plimsoll_runtime.execution.inputs.batch_state import BatchState, step_inputs
from plimsoll_runtime.execution.runners.base import StepRunner
from plimsoll_runtime.models.ops.reduce import Reduce
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.parallel.channel import Channel, ChannelClosed, StepDone, StepShort, encoded
from plimsoll_runtime.parallel.collectives import Exchanging


def no_choice() -> None:
    """Do nothing: no other rank waits after a step's sums."""


class NoParams:
    """The parameters of the slots of a rank that samples nothing."""

    def fill(self, init: SlotInit) -> None:
        """Do nothing."""

    def free(self, slot: int) -> None:
        """Do nothing."""

    def break_off(self) -> None:
        """Do nothing."""


class MemberRunner(StepRunner):
    """Computes the forward passes of a rank other than 0. Its outputs have no tokens."""

    def __init__(self, forward_pass: ForwardPass, num_slots: int) -> None:
        cache = forward_pass.parts.cache
        self._state = BatchState(num_slots, len(cache.groups), cache.num_blocks)
        super().__init__(forward_pass, self._state, NoParams())

    def _compute(self, plan: StepPlan) -> StepResult:
        cache = self._parts.cache
        inputs = step_inputs(plan, self._state, cache.block_size, cache.device)
        self._forward(plan, self._forward_pass.run, inputs)
        return StepResult([SequenceOutput()] * len(plan.sequences), self._forward_pass.fallbacks)


class CountedCollectives:
    """The `Collectives` of a rank. They know how many sums of a step are left, so that a rank can join them after a
    failure: the other ranks of the group wait in each sum until all ranks have called it.
    """

    def __init__(self, exchanging: Exchanging, on_sum: Callable[[], None] = lambda: None) -> None:
        """`on_sum`: called at the start of each sum, except those of CPU kernels."""
        self._exchanging = exchanging
        self._on_sum = on_sum
        self._sums = 0

    @property
    def exchange(self) -> int | None:
        return self._exchanging.exchange

    def begin(self) -> None:
        """Start a step."""
        self._sums = 0

    def sum(self, partial: Tensor) -> Tensor:
        # All memory is allocated before the rank joins the exchange, so that a shortage has left the sum out.
        total = partial.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        result = total if partial.dtype is torch.float32 else torch.empty_like(partial)
        self._sums += 1
        self._on_sum()
        self._exchanging.add_up(total)
        return result if result is total else result.copy_(total)

    def summed(self, count: int) -> None:
        self._sums += count

    @property
    def device(self) -> torch.device:
        return self._exchanging.device

    def add_up(self, part: Tensor) -> None:
        """Replace a contiguous float32 tensor by the sum of all ranks' tensors. `finish` does not join such sums."""
        self._on_sum()
        self._exchanging.add_up(part)

    def gathered(self, data: bytes) -> list[bytes]:
        """Return the bytes of all ranks, in their order."""
        return self._exchanging.gathered(data)

    def finish(self, program: Program, rows: int) -> None:
        """Join the sums of a step of `rows` rows that this rank did not reach. Their results are of no use."""
        widths = [op.width for op in program.ops if isinstance(op, Reduce)]
        for width in widths[self._sums :]:
            self._exchanging.add_up(torch.zeros(rows, width, device=self._exchanging.device))


class RankSteps:
    """Runs the plans that arrive on a channel and reports each step's result."""

    def __init__(
        self,
        channel: Channel,
        runner: Runner,
        timeline: Timeline,
        collectives: CountedCollectives,
        program: Program,
        fail: Callable[[], None] = no_choice,
    ) -> None:
        """`fail`: joins what other ranks wait for after a step's sums, if this rank lacks memory."""
        self._channel = channel
        self._runner = runner
        self._timeline = timeline
        self._collectives = collectives
        self._program = program
        self._fail = fail

    def run(self) -> None:
        """Run until the channel is closed."""
        while True:
            try:
                plan = self._channel.receive()
            except ChannelClosed:
                return
            self._channel.send(encoded(self._step(plan)))

    def _step(self, plan: StepPlan) -> StepDone | StepShort:
        self._collectives.begin()
        self._timeline.begin()
        try:
            result = self._runner.run(plan).result()
        except StepMemoryError as error:
            self._collectives.finish(self._program, plan.num_tokens)
            self._fail()
            return StepShort(str(error))
        phases = [(span.phase, span.end_ns - span.start_ns) for span in self._timeline.take()]
        return StepDone(result.outputs, phases, result.attention_fallbacks)
