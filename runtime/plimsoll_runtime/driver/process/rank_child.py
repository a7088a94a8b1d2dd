"""The engine process's side of the processes of a parallel group's ranks."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from plimsoll_runtime.driver.process.child import SocketFolder
from plimsoll_runtime.driver.process.exit_errors import error_of
from plimsoll_runtime.driver.process.failed_backends import BackendLostError
from plimsoll_runtime.driver.process.handshake import StartRank
from plimsoll_runtime.driver.process.stage_segments import StageSegments
from plimsoll_runtime.driver.process.standby import ForkServer, StandbyProcess
from plimsoll_runtime.driver.process.started_rank import Placement, StartedRank
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import LoadProgress, ProcessFailed
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.parallel.channel import BackendFailed, Channel, ChannelClosed, RankReady, Report
from plimsoll_runtime.parallel.layout import layout_of
from plimsoll_runtime.parallel.leader import RankLink
from plimsoll_runtime.utils.progress import Progress
from plimsoll_runtime.weights.image import Image

MESSAGE_SECONDS = 30
"""Most time for a rank to read a plan, or to send a report that it has begun to send."""


class RankChild(StartedRank):
    """A rank whose channel of steps leads to this process."""

    def __init__(self, order: StartRank, standby: StandbyProcess, segments: StageSegments, image: Image) -> None:
        """Start the rank in a standby process, which is used up. `image`: see `StartRank`.

        Raises StandbyDeadError.
        """
        steps, their_steps = socket.socketpair()
        # A stopped rank does not read, and the engine must notice that.
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            steps.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", MESSAGE_SECONDS, 0))
        self.channel = Channel(steps, Report)
        try:
            super().__init__(order, standby, their_steps, segments, image)
        except BaseException:
            self.channel.close()
            raise

    def failure(self, report: Report) -> Exception:
        return failure_of(self.name, report)

    def close(self) -> None:
        """Kill the process, wait for its end and close the channel."""
        super().close()
        self.channel.close()


def failure_of(rank: str, report: Report) -> Exception:
    """Return the error for a report that is no result of a step. `rank`: its name."""
    if isinstance(report, ProcessFailed):
        return error_of(report)
    if isinstance(report, BackendFailed):
        return BackendLostError(f"rank {rank}: {report.message}", report.backend)
    return EngineDeadError(f"rank {rank} sent {type(report).__name__} instead of a step's result")


def until_ready(links: Mapping[int, RankLink], progress: Progress, seconds: float | None) -> RankReady:
    """Wait until all ranks can run steps and return the report of rank 0. `progress` is rank 0's.

    Raises the error with which the first rank failed, and EngineDeadError after `seconds` (None: no limit).
    """
    due = None if seconds is None else time.monotonic() + seconds
    reported: dict[int, RankReady] = {}
    for number, report in _reports(links, due):
        if isinstance(report, LoadProgress):
            progress(report.stage, report.fraction)
        elif isinstance(report, RankReady):
            reported[number] = report
        else:
            raise links[number].failure(report)
        if len(reported) == len(links):
            break
    if late := [link.name for number, link in links.items() if number not in reported]:
        raise EngineDeadError(f"rank {' and rank '.join(late)} did not start within {seconds:.0f} s")
    return reported[0]


def _reports(links: Mapping[int, RankLink], due: float | None) -> Iterator[tuple[int, Report]]:
    """Yield the reports of ranks as they arrive, with the rank's number, until `due` (None: without end).

    Raises the error of a rank that ends.
    """
    polled, by_fd = select.poll(), {link.channel.fileno(): number for number, link in links.items()}
    for descriptor in by_fd:
        polled.register(descriptor, select.POLLIN)
    while True:
        # Several messages may have been read at once.
        ready = [number for number, link in links.items() if link.channel.has_message]
        if not ready:
            found = polled.poll(None if due is None else max(0.0, due - time.monotonic()) * 1e3)
            ready = [by_fd[descriptor] for descriptor, _ in found]
        if not ready:
            return
        for number in ready:
            try:
                yield number, links[number].channel.receive()
            except ChannelClosed as error:
                raise links[number].death() from error


LOOPBACK = "127.0.0.1"
FORK_SECONDS = 60.0
"""Time for a fork server to import everything and fork."""


def forked(forks: ForkServer) -> StandbyProcess:
    """Fork a process. It works also in a thread with a running event loop.

    Raises StandbyDeadError, MemoryLimitError, and EngineDeadError after FORK_SECONDS.
    """
    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(asyncio.run, asyncio.wait_for(forks.fork(), FORK_SECONDS)).result()
        except TimeoutError as error:
            forks.close()
            raise EngineDeadError(f"the fork server did not fork a rank within {FORK_SECONDS:g} s") from error


class RankChildren:
    """The ranks of a group on this machine. They end with this process, however it ends."""

    def __init__(
        self,
        config: EngineConfig,
        images: Sequence[Image],
        forks: ForkServer,
        num_blocks: int | None = None,
        placement: Placement | None = None,
        failed_backends: Sequence[str] = (),
    ) -> None:
        """Fork and start a rank for each image. Without a `placement`, all ranks of the group are on this machine.

        `num_blocks`, `failed_backends`: see `parallel.rank`. Raises StandbyDeadError, MemoryLimitError.
        """
        size = config.ranks
        self._closed = False
        self.links: list[RankChild] = []
        with contextlib.ExitStack() as undo:
            self._folder = SocketFolder(longest_name="meeting")
            self._segments = StageSegments(layout_of(config), range(size) if placement is None else placement.ranks)
            undo.callback(self.close)
            meeting = f"file://{self._folder.path}/meeting"
            placement = placement or Placement(
                range(size), size, meeting, LOOPBACK, num_blocks=num_blocks, failed_backends=failed_backends
            )
            for number, image in zip(placement.ranks, images, strict=True):
                self.links.append(RankChild(placement.order(config, number), forked(forks), self._segments, image))
            undo.pop_all()

    @property
    def constraints(self) -> socket.socket:
        """The socket for constraints of rank 0."""
        return self.links[0].constraints

    def ready(self, progress: Progress, seconds: float | None = None) -> RankReady:
        """See `until_ready`."""
        return until_ready(dict(enumerate(self.links)), progress, seconds)

    def kill(self) -> None:
        """Kill all ranks."""
        for link in self.links:
            link.kill()

    def close(self) -> None:
        """Kill all ranks and wait for their end. May be called again."""
        if self._closed:
            return
        self._closed = True
        self.kill()
        for link in self.links:
            link.close()
        self.links = []
        self._folder.remove()
        self._segments.close()
