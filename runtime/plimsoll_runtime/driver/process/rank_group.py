"""The ranks of one generation after another: if a rank is lost, all are replaced."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from plimsoll_runtime.driver.process.rank_child import RankChildren
from plimsoll_runtime.driver.process.standby import ForkServer
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import EngineInfo
from plimsoll_runtime.engine.protocol.plan import StepPlan, StepResult
from plimsoll_runtime.engine.recovery import GenerationLostError
from plimsoll_runtime.engine.step_timing import StepDurations, Timeline
from plimsoll_runtime.errors import PlimsollError
from plimsoll_runtime.parallel.leader import GroupRunner, RankLostError
from plimsoll_runtime.parallel.remote_grammars import RemoteGrammars
from plimsoll_runtime.utils.progress import Progress, silent
from plimsoll_runtime.weights.image import Image

logger = logging.getLogger(__name__)

START_SECONDS = 10.0
"""Least time for new ranks to start. They may take three times as long as the first ones if that is more."""
RETRY_SECONDS = 1.0
"""Pause after a failed start of new ranks."""


class RankGroup:
    """Runs steps on the ranks of the present generation, and starts the next generation in a thread (`Recovery`).

    A generation ends as a whole: the ranks' KV caches only make sense together.
    """

    def __init__(self, config: EngineConfig, progress: Progress) -> None:
        """Start the first generation and wait until it is ready. `config`: of each rank.

        Raises the error with which a rank failed.
        """
        self._config = config
        self._size = config.tensor_parallel
        self.timeline = Timeline()
        self.grammars = RemoteGrammars()
        self._generation = 1
        self._ended = threading.Event()
        self._ready = threading.Event()
        self._forks = ForkServer.spawn()
        self._images = self._new_images()
        began = time.monotonic()
        self._ranks = RankChildren(config, self._images, self._forks)
        try:
            self.info: EngineInfo = self._ranks.ready(progress)
            self._start_seconds = max(START_SECONDS, 3 * (time.monotonic() - began))
        except BaseException:
            self._ranks.close()
            self._forks.close()
            self._close_images()
            raise
        # The next generations have the same cache, however much memory is free then.
        self._config = replace(config, max_model_len=self.info.max_model_len)
        self._serve()

    def run(self, plan: StepPlan) -> StepResult:
        """Run a step. Raises StepMemoryError, and GenerationLostError if a rank is lost."""
        if not self._ready.is_set():
            raise GenerationLostError
        try:
            return self._runner.run(plan)
        except RankLostError as error:
            self._lose(error)
            raise GenerationLostError from error

    @property
    def descriptors(self) -> Sequence[int]:
        return [link.channel.fileno() for link in self._ranks.links] if self._ready.is_set() else []

    def check(self) -> None:
        try:
            self._runner.check()
        except RankLostError as error:
            self._lose(error)
            raise GenerationLostError from error

    def wait(self, seconds: float) -> bool:
        return self._ready.wait(seconds)

    def end(self) -> None:
        """End all ranks. May be called again."""
        self._ended.set()
        self._ranks.close()
        self._forks.close()
        self._close_images()
        self.grammars.close()

    def _new_images(self) -> list[Image]:
        """Return an empty image for each rank, from which the rank that replaces it wakes."""
        return [Image.create(0, f"{self._config.model} rank {number}") for number in range(self._size)]

    def _close_images(self) -> None:
        for image in self._images:
            image.close()

    def _serve(self) -> None:
        durations = StepDurations(self._config.step_timeout)
        self._runner = GroupRunner(self._ranks.links, self.timeline, durations)
        self.grammars.connect(self._ranks.links[0].constraints)
        self._ready.set()

    def _lose(self, error: RankLostError) -> None:
        self._ready.clear()
        self._ranks.kill()
        logger.error("generation %d of the ranks has ended: %s; starting the next one", self._generation, error)
        threading.Thread(target=self._replace, name="plimsoll-ranks", daemon=True).start()

    def _replace(self) -> None:
        """Start generations until one is ready."""
        while not self._ended.is_set():
            self._ranks.close()
            self._generation += 1
            began = time.monotonic()
            try:
                if not self._forks.alive:
                    self._forks = ForkServer.spawn()
                self._ranks = RankChildren(self._config, self._images, self._forks, self.info.num_blocks)
                self._ranks.ready(silent, self._start_seconds)
            except (PlimsollError, OSError) as error:
                logger.error("generation %d of the ranks could not start: %s", self._generation, error)
                # An image may not fit any more, for example because the model's files have changed.
                self._close_images()
                self._images = self._new_images()
                self._ended.wait(RETRY_SECONDS)
                continue
            logger.info("generation %d of the ranks is ready after %.2f s", self._generation, time.monotonic() - began)
            self._serve()
            return
