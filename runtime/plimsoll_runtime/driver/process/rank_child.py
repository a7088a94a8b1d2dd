"""The engine process's side of the processes of a parallel group's ranks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence

from plimsoll_kernels.cpu.exchange import MOST_RANKS, rounds_of, segment_bytes
from plimsoll_kernels.cpu.library import library
from plimsoll_runtime.driver.process.child import SocketFolder
from plimsoll_runtime.driver.process.control_socket import KILL_SECONDS
from plimsoll_runtime.driver.process.exit_errors import error_of, exit_text
from plimsoll_runtime.driver.process.handshake import StartRank
from plimsoll_runtime.driver.process.heartbeat import Pulse
from plimsoll_runtime.driver.process.standby import ForkServer, StandbyProcess
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import EngineInfo, LoadProgress, ProcessFailed
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.parallel.channel import Channel, ChannelClosed, RankReady, Report
from plimsoll_runtime.utils.progress import Progress
from plimsoll_runtime.weights.image import Image

logger = logging.getLogger(__name__)

SHOW_STACKS = signal.SIGUSR1
"""On this signal a rank writes the stacks of its threads to its standard error."""


class RankChild:
    """A started rank: its process, its channel of steps, and its socket for constraints."""

    def __init__(self, order: StartRank, standby: StandbyProcess, segment: int, image: Image) -> None:
        """Start the rank in a standby process, which is used up. `segment` (a descriptor), `image`: see `StartRank`.

        Raises StandbyDeadError.
        """
        self.number, self._size, self._segment = order.rank, order.size, segment
        (steps, their_steps), (self.constraints, their_constraints) = socket.socketpair(), socket.socketpair()
        self.channel = Channel(steps, Report)
        try:
            with their_steps, their_constraints:
                standby.start(order, [their_steps.fileno(), their_constraints.fileno(), segment, image.descriptor])
        except BaseException:
            standby.close()
            self.channel.close()
            self.constraints.close()
            raise
        self._process, self._lifeline = standby.process, standby.lifeline
        with os.fdopen(standby.page, "rb", buffering=0) as page:
            self._pulse = Pulse(page.fileno())

    @property
    def sums(self) -> int:
        # Sums within a step of the CPU kernels are counted in the segment only.
        return self._pulse.read().taken + self._rounds()

    def show_stacks(self) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, SHOW_STACKS)

    def death(self) -> EngineDeadError:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)
        return EngineDeadError(f"rank {self.number} {exit_text(self._process.returncode)}")

    def failure(self, report: Report) -> Exception:
        if isinstance(report, ProcessFailed):
            return error_of(report)
        return EngineDeadError(f"rank {self.number} sent {type(report).__name__} instead of a step's result")

    def _rounds(self) -> int:
        if os.fstat(self._segment).st_size == 0:
            return 0
        return rounds_of(self._segment, self._size)[self.number]

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process, wait for its end and close the channel."""
        self._process.kill()
        try:
            self._process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            logger.error("rank %d was killed but has not ended; its memory may still be in use", self.number)
        self._lifeline.close()
        self.channel.close()
        self.constraints.close()
        self._pulse.close()


class RankChildren:
    """The ranks of a group on this machine. They end with this process, however it ends."""

    def __init__(
        self, config: EngineConfig, images: Sequence[Image], forks: ForkServer, num_blocks: int | None = None
    ) -> None:
        """Fork and start a rank for each image. `num_blocks`: see `parallel.rank`.

        Raises StandbyDeadError, MemoryLimitError.
        """
        size = len(images)
        self._num_blocks = num_blocks
        self.links: list[RankChild] = []
        with contextlib.ExitStack() as undo:
            self._folder = SocketFolder(longest_name="meeting")
            self._segment = _segment(size)
            undo.callback(self.close)
            for number in range(size):
                standby = asyncio.run(forks.fork())
                self.links.append(RankChild(self._order(config, number, size), standby, self._segment, images[number]))
            undo.pop_all()

    def ready(self, progress: Progress, seconds: float | None = None) -> EngineInfo:
        """Wait until all ranks can run steps and return rank 0's description of the engine. `progress` is rank 0's.

        Raises the error with which the first rank failed, and EngineDeadError after `seconds` (None: no limit).
        """
        due = None if seconds is None else time.monotonic() + seconds
        polled, by_fd = select.poll(), {link.channel.fileno(): link for link in self.links}
        for descriptor in by_fd:
            polled.register(descriptor, select.POLLIN)
        infos: dict[int, EngineInfo | None] = {}
        while len(infos) < len(self.links):
            ready = polled.poll(None if due is None else max(0.0, due - time.monotonic()) * 1e3)
            if not ready:
                late = [str(link.number) for link in self.links if link.number not in infos]
                raise EngineDeadError(f"rank {' and '.join(late)} did not start within {seconds:.0f} s")
            for descriptor, _ in ready:
                link = by_fd[descriptor]
                try:
                    report = link.channel.receive()
                except ChannelClosed as error:
                    raise link.death() from error
                if isinstance(report, LoadProgress):
                    progress(report.stage, report.fraction)
                elif isinstance(report, RankReady):
                    infos[link.number] = report.info
                else:
                    raise link.failure(report)
        info = infos[0]
        assert info is not None
        return info

    def kill(self) -> None:
        """Kill all ranks."""
        for link in self.links:
            link.kill()

    def close(self) -> None:
        """Kill all ranks and wait for their end. May be called again."""
        self.kill()
        for link in self.links:
            link.close()
        self.links = []
        self._folder.remove()
        if self._segment >= 0:
            os.close(self._segment)
            self._segment = -1

    def _order(self, config: EngineConfig, number: int, size: int) -> StartRank:
        return StartRank(
            config=config,
            rank=number,
            size=size,
            meeting=f"file://{self._folder.path}/meeting",
            parent=os.getpid(),
            log_level=logging.getLogger().getEffectiveLevel(),
            num_blocks=self._num_blocks,
        )


def _segment(size: int) -> int:
    """Return the descriptor of a new segment for the exchange of `size` ranks; an empty one if the kernels cannot
    exchange.
    """
    descriptor = os.memfd_create("plimsoll-exchange")
    if library() is not None and size <= MOST_RANKS:
        os.ftruncate(descriptor, segment_bytes(size))
    return descriptor
