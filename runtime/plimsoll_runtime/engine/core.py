"""The engine's core: requests go in, steps come out. It runs in whichever process drives it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.limits import check_request, longest_sequence
from plimsoll_runtime.engine.messages import AddRequest, EngineInfo, EngineStats, StepOutputs
from plimsoll_runtime.engine.plan import StepPlan, StepResult
from plimsoll_runtime.engine.policy import new_policy
from plimsoll_runtime.engine.scheduler import Limits, Scheduler
from plimsoll_runtime.engine.timeline import StepPhase, Timeline
from plimsoll_runtime.errors import EngineDeadError


class Runner(Protocol):
    """Computes steps on a device, in the order in which they come."""

    def run(self, plan: StepPlan) -> StepResult:
        """One output for each of the plan's sequences."""


class EngineCore:
    """A scheduler and a runner, joined: each step is schedule, run, commit.

    With a `timeline` (the runner's too) it marks where each of them ends. What the runner has marked before, while it
    warmed up, is forgotten.
    """

    def __init__(
        self, config: EngineConfig, info: EngineInfo, runner: Runner, timeline: Timeline | None = None
    ) -> None:
        self.info = info
        self._runner = runner
        self.timeline = timeline
        if timeline is not None:
            timeline.clear()
        self._scheduler = Scheduler(_limits(config, info), new_policy(config.policy))
        self._check_every = config.check_integrity_every
        self._failure: str | None = None

    @property
    def has_work(self) -> bool:
        """Whether a request waits or runs."""
        return len(self._scheduler) > 0

    @property
    def stats(self) -> EngineStats:
        """Gauges and counters as of now."""
        stats = self._scheduler.stats()
        if self.timeline is None:
            return stats
        return msgspec.structs.replace(stats, phase_seconds=self.timeline.totals())

    def add(self, request: AddRequest) -> None:
        """Queue a request. Raises UsageError when it could never be served, EngineDeadError after a failure."""
        self._raise_if_failed()
        check_request(request, self.info)
        self._scheduler.add(request)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests; unknown or finished ids are ignored."""
        self._scheduler.abort(request_ids)

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix. Requests that run keep what they have."""
        self._scheduler.forget_prefixes()

    def step(self) -> StepOutputs:
        """Compute one step; nothing is computed when there is no work.

        Raises EngineDeadError when the runner fails. Then every request is lost and so is the engine: what the
        device holds is no longer known.
        """
        self._raise_if_failed()
        timeline = self.timeline
        if timeline is not None:
            timeline.begin()
        expired = self._scheduler.expire()
        step = self._scheduler.schedule()
        if step is None:
            return StepOutputs(expired, self.stats)
        if timeline is not None:
            timeline.lap(StepPhase.SCHEDULE)
        try:
            outputs = expired + self._scheduler.commit(step, self._runner.run(step.plan))
        except Exception as error:
            self._failure = f"a step failed with {type(error).__name__}: {error}"
            raise EngineDeadError(self._failure) from error
        stats = self.stats
        if self._check_every and stats.steps % self._check_every == 0:
            self.check_integrity()
        done = StepOutputs(outputs, stats)
        if timeline is not None:
            timeline.lap(StepPhase.COMMIT)
        return done

    def check_integrity(self) -> None:
        """Raises AssertionError when the records of blocks, slots and sequences disagree."""
        self._scheduler.check_integrity()

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise EngineDeadError(self._failure)


def _limits(config: EngineConfig, info: EngineInfo) -> Limits:
    return Limits(
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        max_len=longest_sequence(info),
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        eos_token_ids=frozenset(info.eos_token_ids),
        prefix_caching=config.prefix_caching,
        paced=info.device == "cpu",
    )
