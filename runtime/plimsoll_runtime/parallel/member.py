"""A rank's side of steps: it computes the plans that arrive, all ranks the same ones in the same order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

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
from plimsoll_runtime.models.ops.stage import Receive, Send
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.parallel.channel import Channel, ChannelClosed, StepDone, StepShort, encoded
from plimsoll_runtime.parallel.collectives import Exchanging
from plimsoll_runtime.parallel.links import Link, NoLink


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


@dataclass(frozen=True, slots=True)
class Passed:
    """Kind of the values that pass from stage to stage."""

    dtype: torch.dtype
    device: torch.device


class UnfinishedStepError(Exception):
    """A rank cannot join the sums that the other ranks wait in, so the generation of ranks ends."""


class CountedCollectives:
    """The `Collectives` of a rank. They know which exchanges of a step are left, so that a rank can join them after a
    failure: the other ranks of its stage wait in each sum until all ranks have called it, and the stage after waits for
    its values.
    """

    def __init__(
        self, exchanging: Exchanging | None, on_sum: Callable[[], None] = lambda: None, link: Link | None = None
    ) -> None:
        """`exchanging`: the exchange of the ranks of a stage; None if it has one rank. `link`: to the stages next to
        it; None if there is one stage. `on_sum`: called at the start of each sum, except those of CPU kernels.
        """
        self._exchanging = exchanging
        self._on_sum = on_sum
        self._link = NoLink() if link is None else link
        self._sums = 0
        self._step = 0
        self._has_received = self._has_sent = False
        self._is_muted = False
        self._has_graphs = self._is_launched = False

    @property
    def exchange(self) -> int | None:
        return None if self._exchanging is None else self._exchanging.exchange

    @property
    def device(self) -> torch.device:
        """Where tensors to add up must be."""
        return torch.device("cpu") if self._exchanging is None else self._exchanging.device

    @property
    def sums(self) -> int:
        """The sums of this step so far."""
        return self._sums

    def begin(self) -> None:
        """Start a step."""
        self._sums = 0
        self._step += 1
        self._has_received = self._has_sent = False
        self._is_launched = not self._has_graphs

    @contextmanager
    def muted(self, is_muted: bool = True) -> Iterator[None]:
        """Within this context, `sum` takes the same memory but joins no exchange, and its results are of no use.

        For passes that other ranks may not run, or may not complete: those that compile kernels or measure memory.
        """
        before, self._is_muted = self._is_muted, is_muted
        try:
            yield
        finally:
            self._is_muted = before

    def have_graphs(self) -> None:
        """Note that the ranks replay graphs of some steps from now on."""
        self._has_graphs = True

    def replaying(self) -> None:
        """Note that a graph with sums is about to be replayed."""
        self._on_sum()

    def launching(self) -> None:
        """Note that the ranks have no graph of this step, and so launch its sums one by one."""
        self._is_launched = True

    def sum(self, partial: Tensor) -> Tensor:
        assert self._exchanging is not None
        # All memory is allocated before the rank joins the exchange, so that a shortage has left the sum out.
        total = partial.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        result = total if partial.dtype is torch.float32 else torch.empty_like(partial)
        if not self._is_muted:
            self._sums += 1
            self._on_sum()
            self._exchanging.add_up(total)
        return result if result is total else result.copy_(total)

    def summed(self, count: int) -> None:
        self._sums += count

    def receive(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        if self._is_muted:
            return torch.zeros(rows, columns, dtype=dtype, device=device)
        values = self._link.receive(self._step, rows, columns, dtype)
        self._has_received = True
        return values.to(device)

    def send(self, values: Tensor) -> None:
        if not self._is_muted:
            self._link.send(self._step, values)
            self._has_sent = True

    def add_up(self, part: Tensor) -> None:
        """Replace a contiguous float32 tensor by the sum over the ranks of a stage. `finish` joins no such sum."""
        if self._exchanging is not None:
            self._on_sum()
            self._exchanging.add_up(part)

    def finish(self, program: Program, rows: int, passed: Passed) -> None:
        """Join the exchanges of a step of `rows` rows that this rank did not reach. Their results are of no use.

        Raises UnfinishedStepError if the other ranks may have called sums in a graph, which adds more rows.
        """
        first, last = program.ops[0], program.ops[-1]
        if isinstance(first, Receive) and not self._has_received:
            self.receive(rows, first.columns, passed.dtype, passed.device)
        if self._exchanging is not None:
            widths = [op.width for op in program.ops if isinstance(op, Reduce)][self._sums :]
            if widths and not self._is_launched:
                raise UnfinishedStepError(
                    f"a step ran out of memory before {len(widths)} of its sums, which are in a graph"
                )
            for width in widths:
                self._exchanging.add_up(torch.zeros(rows, width, device=self._exchanging.device))
        if isinstance(last, Send) and not self._has_sent:
            self.send(torch.zeros(rows, last.columns, dtype=passed.dtype, device=passed.device))


class RankSteps:
    """Runs the plans that arrive on a channel and reports each step's result."""

    def __init__(
        self,
        channel: Channel,
        runner: Runner,
        timeline: Timeline,
        collectives: CountedCollectives,
        program: Program,
        passed: Passed,
        fail: Callable[[], None] = no_choice,
        waiting: Callable[[], float] | None = None,
    ) -> None:
        """`fail`: joins what other ranks wait for after a step's sums, if this rank lacks memory. `waiting`: returns
        the seconds in which this rank has waited for others so far.
        """
        self._channel = channel
        self._runner = runner
        self._timeline = timeline
        self._collectives = collectives
        self._program = program
        self._passed = passed
        self._fail = fail
        self._waiting = waiting
        self._waited = 0.0 if waiting is None else waiting()

    def run(self) -> None:
        """Run until the channel is closed."""
        receive: Callable[[], StepPlan | None] = self._received
        if self._program.facts.stages:
            # The leader sends the next plans while this rank computes, and reads no report until it has sent them.
            plans = SimpleQueue[StepPlan | None]()
            threading.Thread(target=self._read_ahead, args=(plans,), name="plimsoll-plans", daemon=True).start()
            receive = plans.get
        while (plan := receive()) is not None:
            self._channel.send(encoded(self._step(plan)))

    def _received(self) -> StepPlan | None:
        """Wait for the next plan and return it; None if the channel is closed."""
        try:
            plan: StepPlan = self._channel.receive()
        except ChannelClosed:
            return None
        return plan

    def _read_ahead(self, plans: SimpleQueue[StepPlan | None]) -> None:
        while (plan := self._received()) is not None:
            plans.put(plan)
        plans.put(None)

    def _step(self, plan: StepPlan) -> StepDone | StepShort:
        self._collectives.begin()
        self._timeline.begin()
        try:
            result = self._runner.run(plan).result()
        except StepMemoryError as error:
            self._collectives.finish(self._program, plan.num_tokens, self._passed)
            self._fail()
            return StepShort(str(error))
        phases = [(span.phase, span.end_ns - span.start_ns) for span in self._timeline.take()]
        return StepDone(result.outputs, phases, result.attention_fallbacks, self._newly_waited())

    def _newly_waited(self) -> float | None:
        if self._waiting is None:
            return None
        before, self._waited = self._waited, self._waiting()
        return self._waited - before
