"""Supervises one process: starts and probes it, restarts it with a backoff, and stops it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace

import aiohttp

from plimsoll_runtime.errors import ErrorKind
from plimsoll_runtime.local.processes.child import Child, Launch
from plimsoll_runtime.local.processes.probes import State, ask_health
from plimsoll_runtime.local.processes.status_board import Board, Phase, Status
from plimsoll_runtime.utils.progress import Rate

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
# After this lifetime a process counts as healthy, and its end does not increase the backoff.
STABLE_SECONDS = 60.0


class Backoff:
    """Restart delay, which doubles each time a process ends early. A process that ran for STABLE_SECONDS resets it.
    Jitter keeps replicas from restarting at the same time.
    """

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self._jitter = jitter
        self._next = FIRST_SECONDS

    def after(self, lived: float) -> float:
        """Return the seconds to wait after a process that ran for `lived` seconds: 50 to 100 % of the current delay."""
        if lived >= STABLE_SECONDS:
            self._next = FIRST_SECONDS
        step = self._next
        self._next = min(step * 2, LONGEST_SECONDS)
        return step * (0.5 + self._jitter() / 2)


LOADING_POLL_SECONDS = 0.2
SELDOM_POLL_SECONDS = 1.0
"""Poll interval for a process that is ready or downloads: each reported change is written to files."""
CANNOT_START = 127
INCURABLE = frozenset(kind.exit_code for kind in ErrorKind if not kind.cured_by_restart)

PHASES = {
    State.SILENT: Phase.STARTING,
    State.LOADING: Phase.LOADING,
    State.READY: Phase.READY,
    State.UNREADY: Phase.UNREADY,
}


class Keeper:
    """Supervises one slot of the board. `make` builds a new command for each start, because the last port may
    be taken.
    """

    def __init__(
        self,
        slot: str,
        make: Callable[[], Launch],
        board: Board,
        session: aiohttp.ClientSession,
        backoff: Backoff,
    ) -> None:
        self._slot = slot
        self._make = make
        self._board = board
        self._session = session
        self._backoff = backoff
        self._stop = asyncio.Event()
        self._gone = asyncio.Event()
        self._child: Child | None = None
        self._ends = 0
        self._was_ready = False

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._child is not None

    async def run(self) -> None:
        """Keep the process running until `stop` or `kill`. After an error that a restart does not cure, wait
        for these.
        """
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                ended = await self._live(began)
                if self._stop.is_set():
                    break
                if self._is_final(ended):
                    self._report(replace(ended, phase=Phase.FAILED))
                    await self._stop.wait()
                else:
                    await self._wait(ended, self._backoff.after(time.monotonic() - began))
        finally:
            self.kill()
            self._report(Status(Phase.STOPPED, ends=self._ends))
            self._gone.set()

    async def stop(self, grace: float) -> None:
        """Stop the process: SIGTERM, then SIGKILL after `grace` seconds. Returns once it has ended."""
        self._stop.set()
        if self._child is not None:
            self._child.terminate()
        try:
            async with asyncio.timeout(grace):
                await self._gone.wait()
        except TimeoutError:
            self.kill()
            await self._gone.wait()

    def kill(self) -> None:
        """Kill the process and all processes it has started."""
        self._stop.set()
        if self._child is not None:
            self._child.kill()

    def _is_final(self, ended: Status) -> bool:
        """Return whether a restart would fail in the same way. A process that was ready before it ran out of memory is
        restarted: it may fit again.
        """
        if ended.code == ErrorKind.MEMORY.exit_code and self._was_ready:
            return False
        return ended.code in INCURABLE

    async def _live(self, began: float) -> Status:
        """Run the process once and return how it ended."""
        launch = self._make()
        try:
            child = await Child.start(launch)
        except OSError as error:
            self._ends += 1
            return Status(Phase.WAITING, error=f"cannot start: {error}", code=CANNOT_START, ends=self._ends)
        self._child = child
        if self._stop.is_set():  # `stop` was called while the process started
            child.terminate()
        ended = asyncio.create_task(child.wait())
        try:
            await self._watch(child, launch, ended, began)
            code = await ended
        finally:
            child.kill()
            self._child = None
        self._ends += 1
        return Status(Phase.WAITING, url=launch.url, error=child.why(code), code=code, ends=self._ends)

    async def _watch(self, child: Child, launch: Launch, ended: asyncio.Task[int], began: float) -> None:
        """Report the status until the process ends."""
        status = Status(Phase.STARTING, url=launch.url, pid=child.pid, ends=self._ends)
        self._report(status)
        rate = Rate()
        while not ended.done():
            ready = status.phase is Phase.READY
            seldom = ready or status.transfer is not None
            await asyncio.wait({ended}, timeout=SELDOM_POLL_SECONDS if seldom else LOADING_POLL_SECONDS)
            if ended.done():
                return
            health = await ask_health(self._session, f"{launch.url}/health")
            took = status.took
            if health.state is State.READY:
                self._was_ready = True
                took = took or time.monotonic() - began
            phase = PHASES[health.state]
            if phase is Phase.STARTING and ready:
                phase = Phase.UNREADY
            transfer = health.transfer
            status = replace(
                status,
                phase=phase,
                stage=health.stage,
                fraction=health.fraction,
                took=took,
                transfer=transfer,
                rate=None if transfer is None else rate.update(time.monotonic(), transfer.done),
            )
            if not ended.done() and not self._stop.is_set():
                self._report(status)

    async def _wait(self, ended: Status, seconds: float) -> None:
        self._report(replace(ended, wait=seconds))
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return

    def _report(self, status: Status) -> None:
        self._board.report(self._slot, status)
