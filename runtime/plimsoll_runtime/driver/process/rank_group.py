"""The ranks of one generation after another: if a rank is lost, all are replaced."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from plimsoll_runtime.driver.process.failed_backends import FailedBackends
from plimsoll_runtime.driver.process.member_generation import MemberGeneration
from plimsoll_runtime.driver.process.member_listener import MemberListener
from plimsoll_runtime.driver.process.rank_child import RankChildren
from plimsoll_runtime.driver.process.rank_images import RankImages
from plimsoll_runtime.driver.process.standby import ForkServer
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import EngineInfo, GroupStats
from plimsoll_runtime.engine.protocol.plan import Launched, StepPlan, StepResult
from plimsoll_runtime.engine.recovery import GenerationLostError
from plimsoll_runtime.engine.step_timing import StepDurations, Timeline
from plimsoll_runtime.errors import EngineDeadError, ErrorKind, ModelError, PlimsollError
from plimsoll_runtime.parallel.channel import RankReady
from plimsoll_runtime.parallel.leader import GroupRunner
from plimsoll_runtime.parallel.losses import LossCause, RankLostError, cause_of
from plimsoll_runtime.parallel.membership import shown
from plimsoll_runtime.parallel.remote_grammars import RemoteGrammars
from plimsoll_runtime.utils.progress import Progress

logger = logging.getLogger(__name__)

START_SECONDS = 10.0
"""Least time for new ranks to start. They may take three times as long as the first ones if that is more."""
KILL_EVERY_SECONDS = 0.2
RETRY_SECONDS = 1.0
"""Pause after a failed start of new ranks."""


class _Step:
    """A step of a generation (`plan.Launched`)."""

    ready = False

    def __init__(self, noticed: AbstractContextManager[None], step: Launched, failed: int) -> None:
        """`noticed`: notices the loss of a rank. `failed`: attention backends that have failed before."""
        self._noticed = noticed
        self._step = step
        self._failed = failed

    def result(self) -> StepResult:
        """Wait for the result. Raises StepMemoryError, and GenerationLostError if a rank is lost."""
        with self._noticed:
            result = self._step.result()
        return replace(result, attention_fallbacks=result.attention_fallbacks + self._failed)


class RankGroup:
    """Runs steps on the ranks of the present generation, and starts the next generation in a thread (`Recovery`).

    A generation ends as a whole: the ranks' KV caches only make sense together.
    """

    def __init__(self, config: EngineConfig, progress: Progress, members: MemberListener | None = None) -> None:
        """Start the first generation and wait until it is ready. `members`: None if all ranks are on this machine.

        Raises the error with which a rank failed.
        """
        self._config = config
        self._members = members
        self.timeline = Timeline()
        self.grammars = RemoteGrammars()
        self._generation = 0
        self._lost = dict.fromkeys(map(str, LossCause), 0)
        self._reason = self._stage = ""
        self._waited: dict[int, float] = {}
        self._ended = threading.Event()
        self._ready = threading.Event()
        self._durations = StepDurations(config.step_timeout)
        self._replacing: threading.Thread | None = None
        self._forks = ForkServer.spawn()
        self._ranks: RankChildren | MemberGeneration | None = None
        self._images = RankImages(config)
        self._failed = FailedBackends(config)
        try:
            self.first: RankReady = self._first(progress)
        except BaseException:
            self.end()
            raise
        self._serve()

    @property
    def info(self) -> EngineInfo:
        """Rank 0's description of the engine."""
        assert self.first.info is not None
        return self.first.info

    def run(self, plan: StepPlan) -> Launched:
        """Start a step. Raises GenerationLostError if a rank is lost."""
        if not self._ready.is_set():
            raise GenerationLostError
        runner = self._runner
        with self._noticed(runner):
            step = runner.run(plan)
        return _Step(self._noticed(runner), step, len(self._failed.names))

    @contextlib.contextmanager
    def _noticed(self, runner: GroupRunner) -> Iterator[None]:
        """Raise GenerationLostError instead of RankLostError, and replace all ranks, unless a later generation runs."""
        try:
            yield
        except RankLostError as error:
            if runner is self._runner and self._ready.is_set():
                self._lose(error)
            raise GenerationLostError from error

    @property
    def descriptors(self) -> Sequence[int]:
        links = self._ranks.links if self._ranks is not None and self._ready.is_set() else ()
        return [link.channel.fileno() for link in links]

    @property
    def stats(self) -> GroupStats:
        return GroupStats(
            generation=self._generation,
            lost=dict(self._lost),
            reason=self._reason,
            stage=self._stage,
            refused_connections=0 if self._members is None else self._members.refused,
            waited=dict(self._waited),
            instruction_set="" if self._members is None else self._members.instruction_set,
        )

    def drain(self) -> None:
        if self._members is not None:
            self._members.drain()

    def check(self) -> None:
        with self._noticed(self._runner):
            self._runner.check()

    def wait(self, seconds: float) -> bool:
        return self._ready.wait(seconds)

    def end(self) -> None:
        """End all ranks. May be called again."""
        self._ended.set()
        self._forks.close()
        while (thread := self._replacing) is not None and thread.is_alive():
            # Ranks that it has just forked are killed too.
            self._kill_ranks()
            thread.join(KILL_EVERY_SECONDS)
        self._end_ranks()
        if self._members is not None:
            self._members.close()
        self._images.close()
        self.grammars.close()

    def _first(self, progress: Progress) -> RankReady:
        """Start the first generation and return rank 0's report. If members are lost during that, try again."""
        while True:
            try:
                ranks, began = self._start(progress, None), time.monotonic()
                first = ranks.ready(progress)
                self._start_seconds = max(START_SECONDS, 3 * (time.monotonic() - began))
                self._durations.learn(first.prompt_len, first.prompt_seconds)
                return first
            except EngineDeadError as error:
                if self._failed.add(error):
                    logger.error("the ranks could not start: %s; trying again", error)
                    continue
                if self._members is None or error.kind is not ErrorKind.ENGINE:
                    raise
                logger.error("the ranks could not start: %s; trying again", error)
            time.sleep(RETRY_SECONDS)

    def _start(self, progress: Progress, num_blocks: int | None) -> RankChildren | MemberGeneration:
        """Fork the ranks of the next generation. `num_blocks`: see `parallel.rank`."""
        self._end_ranks()
        if self._failed.take_new():
            self._images.renew()
        if not self._forks.alive:
            self._forks.close()
            self._forks = ForkServer.spawn()
        failed = self._failed.names
        if self._members is None:
            self._generation += 1
            self._ranks = RankChildren(
                self._config, self._images.images, self._forks, num_blocks, failed_backends=failed
            )
        else:
            self._ranks = MemberGeneration(
                self._config, self._images, self._forks, self._members, progress, num_blocks, failed
            )
            self._generation = self._ranks.generation
        return self._ranks

    def _kill_ranks(self) -> None:
        if self._ranks is not None:
            self._ranks.kill()

    def _end_ranks(self) -> None:
        if self._ranks is not None:
            self._ranks.close()

    def _serve(self) -> None:
        assert self._ranks is not None
        self._runner = GroupRunner(
            self._ranks.links, self.timeline, self._durations, self._config.tensor_parallel, self._waited
        )
        self.grammars.connect(self._ranks.constraints)
        self._ready.set()

    def _lose(self, error: RankLostError) -> None:
        self._ready.clear()
        self._kill_ranks()
        if self._ended.is_set():
            return
        logger.error("generation %d of the ranks has ended: %s; starting the next one", self._generation, error)
        self._count(error)
        self._failed.add(error)
        self._replacing = threading.Thread(target=self._replace, name="plimsoll-ranks", daemon=True)
        self._replacing.start()

    def _count(self, error: Exception) -> None:
        self._lost[cause_of(error)] += 1
        self._reason = shown(str(error))

    def _note(self, stage: str, fraction: float, transfer: object = None) -> None:
        self._stage = stage

    def _replace(self) -> None:
        """Start generations until one is ready."""
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                self._start(self._note, self.info.num_blocks).ready(self._note, self._start_seconds)
            except Exception as error:
                if self._ended.is_set():
                    return
                logger.error(
                    "the next generation of the ranks could not start: %s",
                    error,
                    exc_info=None if isinstance(error, PlimsollError | OSError) else error,
                )
                self._count(error)
                if self._failed.add(error):
                    continue
                if isinstance(error, ModelError):
                    # An image may not fit any more, for example because the model's files have changed.
                    self._images.renew()
                self._ended.wait(RETRY_SECONDS)
                continue
            if self._ended.is_set():
                return
            logger.info("generation %d of the ranks is ready after %.2f s", self._generation, time.monotonic() - began)
            self._serve()
            return
