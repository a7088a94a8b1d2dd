"""The engine core: takes requests, returns step outputs, and holds requests while their grammar is compiled."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from plimsoll_runtime.engine.config import EngineConfig, overlaps
from plimsoll_runtime.engine.kv.offload.index import TierIndex
from plimsoll_runtime.engine.limits import (
    Limits,
    blocks_within,
    check_request,
    longest_sequence,
    step_tokens,
)
from plimsoll_runtime.engine.pipeline import InlineSteps, Leave, Pipeline, StagedSteps, ThreadedSteps, keep_all
from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.engine.protocol.messages import (
    AddRequest,
    EngineInfo,
    EngineStats,
    GraphStats,
    RequestOutput,
    StepOutputs,
    Vocabulary,
)
from plimsoll_runtime.engine.protocol.plan import Launched, StepPlan
from plimsoll_runtime.engine.recovery import GenerationLostError, Recovery
from plimsoll_runtime.engine.scheduler.batch_builder import Step
from plimsoll_runtime.engine.scheduler.policies import new_policy
from plimsoll_runtime.engine.scheduler.scheduler import Scheduler
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError
from plimsoll_runtime.engine.step_timing import StepDurations, StepPhase, Timeline
from plimsoll_runtime.engine.step_tracing import OpMeter, StepTracer
from plimsoll_runtime.engine.work.counter import StepCounts
from plimsoll_runtime.errors import EngineDeadError, UsageError

logger = logging.getLogger(__name__)


class Compiler(Protocol):
    """Compiles constraints in the background."""

    def use(self, vocabulary: Vocabulary) -> None:
        """Set the vocabulary that constraints are compiled for."""

    def prepare(self, constraint: Constraint) -> Future[Any]:
        """Start to compile a constraint, unless it is compiled already or being compiled.

        The future raises ConstraintError if the constraint cannot be compiled.
        """


class HeldRequests:
    """Requests whose constraint is being compiled. They join the waiting queue in the order in which compiling ends."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._held: dict[str, tuple[AddRequest, Future[Any]]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def use(self, vocabulary: Vocabulary) -> None:
        """Set the vocabulary that constraints are compiled for."""
        self._compiler.use(vocabulary)

    def add(self, request: AddRequest) -> None:
        """Hold a request with a constraint. Raises UsageError for an id that is already held."""
        assert request.context.params.constraint is not None
        if request.request_id in self._held:
            raise UsageError(f"request id {request.request_id!r} is in use; give every request a unique id")
        self._held[request.request_id] = request, self._compiler.prepare(request.context.params.constraint)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop held requests; unknown ids are ignored."""
        for request_id in request_ids:
            self._held.pop(request_id, None)

    def take_ready(self) -> tuple[list[AddRequest], list[RequestOutput]]:
        """Remove the requests whose constraint has been compiled or has failed. Return those that can run, and an error
        output for each of the others.
        """
        ready: list[AddRequest] = []
        failed: list[RequestOutput] = []
        for request, compiled in [held for held in self._held.values() if held[1].done()]:
            del self._held[request.request_id]
            try:
                compiled.result()
            except ConstraintError as error:
                failed.append(RequestOutput(request.request_id, finish_reason="error", error=f"the constraint {error}"))
            else:
                ready.append(request)
        return ready, failed

    def give_up(self, error: str) -> list[RequestOutput]:
        """End all held requests, and return their messages, with the finish reason "unavailable" and this error."""
        names, self._held = list(self._held), {}
        return [RequestOutput(name, finish_reason="unavailable", error=error) for name in names]

    def wait(self, seconds: float) -> None:
        """Return when one constraint has been compiled or has failed, or after `seconds`."""
        wait([compiled for _, compiled in self._held.values()], seconds, FIRST_COMPLETED)


WAIT_SECONDS = 0.02
"""Seconds to wait for the disk or a constraint if there is no other work. Between two waits the engine reads commands.
"""


class Runner(Protocol):
    """Computes steps on a device, in the order in which they are submitted."""

    def run(self, plan: StepPlan) -> Launched:
        """Compute a step, or start it on an asynchronous device. The result has one output for each sequence of the
        plan.

        Raises StepMemoryError if the device has too little memory for this step but can run smaller ones.
        """


class Compiled(Protocol):
    """Counts kernels that were compiled while requests waited instead of during warm-up."""

    count: int


class Replays(Protocol):
    """Counts the forward passes of a device with CUDA graphs; see `GraphStats`."""

    replayed: int
    launched: int
    padding: int

    def clear(self) -> None:
        """Start again from zero, after the warm-up."""


class Passes(Protocol):
    """The forward passes of this process."""

    @property
    def backend_name(self) -> str:
        """The attention backend in use."""

    @property
    def replays(self) -> Replays | None:
        """Counts of passes; None without CUDA graphs."""


class EngineCore:
    """Joins a scheduler and a runner. Each step is schedule, run, commit.

    If steps overlap (`config.overlaps`), a worker thread runs step N+1 while this thread commits step N and plans step
    N+2. With `config.offline`, step N+2 is planned before the caller handles the outputs of step N, because handling
    many finished sequences at once can take longer than a step.

    Exceptions such as Ctrl-C must not be raised inside a call; see `interrupts`.

    - `timeline`: records where each phase of a step ends. The runner records its phases in `runner_timeline`, which is
      the same object unless steps overlap. Spans recorded before (by the warm-up) are cleared.
    - `on_step`: called before each wait for a step with the seconds that the step may take (see `durations`).
    - `compiler`: compiles constraints; a request joins the waiting queue when its constraint is compiled. None: `add`
      rejects requests with a constraint.
    - `leave`: makes the runner leave CPU cores to the caller of `step`, if steps overlap.
    - `compiled`: counter that `stats` reports; None: this device compiles no kernels.
    - `passes`: the forward passes whose counts `stats` reports; None: other processes compute them.
    - `recovery`: replaces the processes that compute steps if they are lost; None: steps run in this process.
    - `ops`: tells the work of ops in steps that are recorded for traces (`config.step_tracing`); None: it is not known.
    """

    def __init__(
        self,
        config: EngineConfig,
        info: EngineInfo,
        runner: Runner,
        timeline: Timeline | None = None,
        runner_timeline: Timeline | None = None,
        *,
        tiers: TierIndex | None = None,
        compiler: Compiler | None = None,
        leave: Leave = keep_all,
        compiled: Compiled | None = None,
        passes: Passes | None = None,
        recovery: Recovery | None = None,
        ops: OpMeter | None = None,
    ) -> None:
        self.info = info
        self.recovery = recovery
        self._recover_seconds = config.recover_seconds
        self._lost_since: float | None = None
        self._pipeline: Pipeline
        if config.pipeline_parallel > 1:
            self._pipeline = StagedSteps(runner.run, config.pipeline_parallel)
        elif overlaps(config, info.device):
            self._pipeline = ThreadedSteps(runner.run, runner_timeline, leave)
        else:
            own = config.step_tracing is not None and runner_timeline is not timeline
            self._pipeline = InlineSteps(runner.run, runner_timeline if own else None)
        self._plans_first = config.offline and self._pipeline.depth > 1
        self._under_way: deque[Step] = deque()
        self.timeline = timeline
        self._timelines = [t for t in dict.fromkeys((timeline, runner_timeline)) if t is not None]
        for each in self._timelines:
            each.clear()
        self._tracer: StepTracer | None = None
        if config.step_tracing is not None and timeline is not None:
            others = None if runner_timeline is timeline else runner_timeline
            overlapping = self._pipeline.depth > 1
            waited = dict[int, float] if recovery is None else lambda: recovery.stats.waited
            self._tracer = StepTracer(
                config.step_tracing, timeline, others, ops, overlapping=overlapping, waited=waited
            )
        self._scheduler = Scheduler(_limits(config, info), new_policy(config.policy), tiers=tiers)
        self._held = None if compiler is None else HeldRequests(compiler)
        self._check_every = config.check_integrity_every
        self.durations = StepDurations(config.step_timeout)
        self.on_step: Callable[[float], None] | None = None
        self._ended_ns = 0
        self._block_bytes = info.kv_bytes // info.num_blocks
        self._failure: str | None = None
        self._attention_fallbacks = 0
        self._attention_backend = ""
        self._compiled = compiled
        self._passes = passes
        self._replays = None if passes is None else passes.replays
        if self._replays is not None:
            self._replays.clear()
        self._counts = StepCounts(info.work)

    @property
    def has_work(self) -> bool:
        """Whether requests wait or run, steps are in progress, the KV cache is being resized, or lost processes are
        being replaced.
        """
        busy = bool(self._under_way or self._held) or self._lost_since is not None
        return len(self._scheduler) > 0 or self.resizing or busy

    @property
    def resizing(self) -> bool:
        """Whether the KV cache does not have the requested size yet, or has not returned its surplus memory yet."""
        return self._scheduler.resizing or any(step.plan.num_blocks is not None for step in self._under_way)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache, the padding block included, according to the steps planned so far."""
        return self._block_bytes * (self._scheduler.stats().blocks_total + 1)

    @property
    def stats(self) -> EngineStats:
        """Current gauges and counters."""
        phases = self._timelines[0].totals() if self._timelines else ()
        if len(self._timelines) > 1:
            phases = tuple(map(sum, zip(*(timeline.totals() for timeline in self._timelines), strict=True)))
        stats, counts, replays = self._scheduler.stats(), self._counts, self._replays
        return msgspec.structs.replace(
            stats,
            waiting=stats.waiting + len(self._held or ()),
            attention_fallbacks=self._attention_fallbacks,
            kernels_compiled=0 if self._compiled is None else self._compiled.count,
            recovering=self._lost_since is not None,
            group=None if self.recovery is None else self.recovery.stats,
            phase_seconds=phases,
            graphs=None if replays is None else GraphStats(replays.replayed, replays.launched, replays.padding),
            attention_backend=self._attention_backend,
            step_tokens=tuple(counts.tokens),
            step_sequences=tuple(counts.sequences),
            amounts=tuple(counts.amounts),
        )

    def add(self, request: AddRequest) -> None:
        """Queue a request. Raises UsageError if it can never be served, EngineDeadError after a failure."""
        self._raise_if_failed()
        check_request(request, self.info)
        if request.context.params.constraint is None:
            self._scheduler.add(request)
        elif self._held is not None:
            self._held.add(request)
        else:
            raise UsageError("this engine has no grammar compiler; send the request without a constraint")

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests; unknown or finished ids are ignored."""
        request_ids = list(request_ids)
        if self._held:
            self._held.abort(request_ids)
        self._scheduler.abort(request_ids)

    def use(self, vocabulary: Vocabulary) -> None:
        """Set the vocabulary that constraints are compiled for. Call it once, before the first request with a
        constraint.
        """
        if self._held is not None:
            self._held.use(vocabulary)

    def resize(self, kv_bytes: int) -> None:
        """Set the KV cache to the largest number of whole blocks within `kv_bytes`; the next steps apply it.

        No sequence is lost: blocks in use are moved, or kept until their sequence ends. Raises UsageError for a size
        that the cache cannot have, EngineDeadError after a failure.
        """
        self._raise_if_failed()
        self._scheduler.resize(blocks_within(kv_bytes, self.info))

    def reset_prefix_cache(self) -> None:
        """Remove every block from the prefix cache and the tiers, and all state snapshots. Running sequences keep their
        blocks.
        """
        self._scheduler.forget_prefixes()

    def check(self) -> None:
        """Notice lost processes while no step runs. Call it if one of `recovery.descriptors` is readable."""
        if self.recovery is not None and self._lost_since is None:
            try:
                self.recovery.check()
            except GenerationLostError:
                self._forget([])

    def step(self) -> StepOutputs:
        """Run the next step and return its outputs, and error outputs of requests whose deadline has passed or whose
        constraint has failed. If no step can run, wait at most WAIT_SECONDS for the disk, a constraint, or processes
        that replace lost ones.

        Raises EngineDeadError if the runner fails: all requests are lost and the engine cannot be used again, because
        the state of the device is unknown. If the device only lacked memory, smaller steps follow; only a request that
        lacks memory even alone in a step ends with an error. If the processes that compute steps are lost, all requests
        are computed again when others have replaced them.
        """
        self._raise_if_failed()
        timeline = self.timeline
        if timeline is not None:
            timeline.begin()
        expired = self._take_held() if self._held else []
        expired += self._scheduler.expire()
        if self._lost_since is not None and not self._recovered(self._lost_since):
            return StepOutputs(expired + self._give_up(self._lost_since), self.stats)
        self._plan_ahead()
        if not self._under_way:
            if self._held:
                self._held.wait(WAIT_SECONDS)
            else:
                self._scheduler.await_prefetches(WAIT_SECONDS)
            return StepOutputs(expired, self.stats)
        if timeline is not None:
            timeline.lap(StepPhase.SCHEDULE)
        step = self._under_way[0]
        if self._tracer is not None:
            self._tracer.begin(step.tokens)
        if self.on_step is not None:
            self.on_step(self.durations.allow(step.tokens))
        try:
            try:
                result = self._pipeline.result()
            except StepMemoryError:
                outputs = expired + self._undo()
            else:
                self._learn(step)
                if timeline is not None and len(self._timelines) > 1:
                    timeline.lap(StepPhase.WAIT)
                if result.attention_fallbacks != self._attention_fallbacks:
                    self._attention_fallbacks = result.attention_fallbacks
                    self._attention_backend = "" if self._passes is None else self._passes.backend_name
                self._counts.add(step.plan.sequences, step.tokens)
                outputs = expired + self._scheduler.commit(self._under_way.popleft(), result)
                if self._plans_first:
                    self._plan_ahead()
        except GenerationLostError:
            outputs = expired + self._lose(list(self._under_way))
            return StepOutputs(outputs, self.stats)
        except Exception as error:
            self._under_way.clear()
            self._failure = f"a step failed with {type(error).__name__}: {error}"
            raise EngineDeadError(self._failure) from error
        except BaseException as error:
            self._failure = f"a step was interrupted by {type(error).__name__}; load the model again"
            raise
        stats = self.stats
        if self._check_every and stats.steps % self._check_every == 0:
            self.check_integrity()
        done = StepOutputs(outputs, stats)
        if timeline is not None:
            timeline.lap(StepPhase.COMMIT)
        return done if self._tracer is None else self._with_trace(self._tracer, step, done)

    def check_integrity(self) -> None:
        """Raise AssertionError if the records of blocks, slots and sequences disagree."""
        self._scheduler.check_integrity(self._under_way)

    def _with_trace(self, tracer: StepTracer, step: Step, done: StepOutputs) -> StepOutputs:
        """Return a step's outputs with its record, if it was chosen."""
        traced = tracer.end(step.plan, step.tokens, lambda: [each.request_id for each in step.sequences])
        return done if traced is None else msgspec.structs.replace(done, traced=traced)

    def _learn(self, step: Step) -> None:
        """Record the duration of a step, from the later of its planning and the end of the previous step."""
        began, self._ended_ns = max(step.planned_ns, self._ended_ns), time.monotonic_ns()
        if not step.tokens:
            return
        seconds = (self._ended_ns - began) / 1e9
        if self._tracer is not None:
            self._tracer.judge(began, seconds, self.durations.usual(step.tokens))
        self.durations.learn(step.tokens, seconds)

    def _undo(self) -> list[RequestOutput]:
        """Discard all steps in progress, after the oldest one raised StepMemoryError; return the outputs of requests
        that end with an error.
        """
        steps, lost = list(self._under_way), False
        self._under_way.clear()
        for _ in steps[1:]:
            try:
                self._pipeline.result()
            except StepMemoryError:
                pass
            except GenerationLostError:
                lost = True
        self._pipeline.go_on()
        if not lost:
            return self._scheduler.undo(steps)
        return self._forget(steps)

    def _lose(self, steps: Sequence[Step]) -> list[RequestOutput]:
        """Discard all steps in progress, of which the oldest one's result was requested, and every KV block; return
        the outputs of requests that end with an error.
        """
        self._under_way.clear()
        for _ in steps[1:]:
            with suppress(GenerationLostError, StepMemoryError):
                self._pipeline.result()
        self._pipeline.go_on()
        return self._forget(steps)

    def _forget(self, steps: Sequence[Step]) -> list[RequestOutput]:
        self._lost_since = time.monotonic()
        return self._scheduler.lost(steps)

    def _recovered(self, since: float) -> bool:
        """Wait at most WAIT_SECONDS for the processes that replace lost ones; return whether they can run steps."""
        assert self.recovery is not None
        if not self.recovery.wait(WAIT_SECONDS):
            return False
        self._lost_since = None
        logger.info("steps run again after %.2f s", time.monotonic() - since)
        return True

    def _give_up(self, since: float) -> list[RequestOutput]:
        """End all requests if lost processes have not been replaced in time."""
        waited = time.monotonic() - since
        if waited < self._recover_seconds:
            return []
        error = (
            f"the processes that compute this model have ended and were not replaced in {waited:.0f} s; try again later"
        )
        return self._scheduler.give_up(error) + (self._held.give_up(error) if self._held is not None else [])

    def _take_held(self) -> list[RequestOutput]:
        """Queue the requests whose constraint is ready; return an error output for each constraint that failed."""
        assert self._held is not None
        ready, failed = self._held.take_ready()
        for request in ready:
            try:
                self._scheduler.add(request)
            except UsageError as error:
                failed.append(RequestOutput(request.request_id, finish_reason="error", error=str(error)))
        return failed

    def _plan_ahead(self) -> None:
        most = 1 if self._scheduler.suspects else self._pipeline.depth
        while len(self._under_way) < most and (step := self._scheduler.schedule()) is not None:
            if self._tracer is not None:
                self._tracer.submitted(alone=not self._under_way)
            self._pipeline.submit(step.plan)
            self._under_way.append(step)

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise EngineDeadError(self._failure)


def _limits(config: EngineConfig, info: EngineInfo) -> Limits:
    pooling, longest = info.pooling, longest_sequence(info)
    whole = pooling is not None and pooling.whole
    return Limits(
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        max_len=longest,
        max_batch_tokens=step_tokens(config, longest, whole=whole),
        max_sequences=config.max_sequences,
        eos_token_ids=frozenset(info.eos_token_ids),
        prefix_caching=config.prefix_caching
        and (not info.recurrent or info.snapshots > 0)
        and (pooling is None or not pooling.every_token),
        paced=info.device == "cpu" and not config.offline and pooling is None,
        groups=info.groups,
        snapshots=info.snapshots,
        whole_prompts=whole,
        stages=config.pipeline_parallel,
    )
