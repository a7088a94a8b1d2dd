"""Standby processes, which have no model yet, and the fork server that creates them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import subprocess
from collections.abc import Sequence

from plimsoll_runtime.driver.process.control_socket import AdoptedProcess, ControlledProcess, start_linked
from plimsoll_runtime.driver.process.exit_errors import error_of
from plimsoll_runtime.driver.process.handshake import Fork, Forked, Measure, Needs, Prepare, Reply, Start, StartRank
from plimsoll_runtime.driver.process.heartbeat import new_page
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import ProcessFailed
from plimsoll_runtime.errors import UsageError


class StandbyProcess(ControlledProcess):
    """A process without a model. It becomes one engine, or is closed."""

    def __init__(
        self, process: subprocess.Popen[bytes] | AdoptedProcess, end: socket.socket, *, is_ready: bool
    ) -> None:
        super().__init__(process, end, is_ready=is_ready)
        self.page = new_page()

    @classmethod
    def spawn(cls, *, threads: int | None = None, factory: str | None = None) -> StandbyProcess:
        """Start a process that imports only what it needs; returns immediately.

        `threads`: most OpenMP threads, if known. `factory`: the function that will build the engine, if known; its
        module is imported right away. Raises StandbyDeadError.
        """
        environment = dict(os.environ)
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        standby = cls(*start_linked("plimsoll_runtime.driver.process.engine_process", environment), is_ready=True)
        if factory is not None:
            standby._give(Prepare(factory))
        return standby

    async def needs(self, config: EngineConfig, kv: int | None = None) -> Needs:
        """Return the memory that a model needs, with a fixed KV cache of `kv` bytes (None: the minimum, or
        `config.kv_memory`).

        Its files are found as in a load; files of a hub are downloaded first. Raises the errors of a load: SourceError,
        ModelError, MemoryLimitError, UsageError, DeviceLostError; and StandbyDeadError if the process ends. After a
        cancellation the process can still be started, but not asked again.
        """
        async with self._asking:
            await self._until_ready()
            self._give(Measure(config, kv))
            reply = await self._reply()
        if isinstance(reply, ProcessFailed):
            raise error_of(reply)
        assert isinstance(reply, Needs)
        return reply

    def start(self, order: Start | StartRank, descriptors: Sequence[int] = ()) -> None:
        """Start an engine or a rank in the process, with the order's descriptors after the heartbeat page.

        Afterwards process, control socket and page belong to the caller. Raises StandbyDeadError if the process has
        ended, UsageError if it was started before.
        """
        self._check_free()
        self._give(order, [self.page, *descriptors])
        self._is_ours = False

    def close(self) -> None:
        """Kill the process, unless it is an engine. May be called again."""
        if self._is_ours:
            os.close(self.page)
        super().close()

    async def _reply(self) -> Reply:
        self._check_free()
        return await super()._reply()

    def _check_free(self) -> None:
        if not self._is_ours:
            raise UsageError("this standby process was closed or is already an engine; spawn another")


PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h: orphaned descendants become children of the calling process."""


class ForkServer(ControlledProcess):
    """The parent's side of the fork server. The process ends with this one; engines continue without it.

    It has imported what every engine needs, so those imports are in memory once for all engines; each engine has
    private memory only for pages that it writes. A forked process is adopted by this process, which gets its exit code.
    """

    @classmethod
    def spawn(cls) -> ForkServer:
        """Start the process; returns immediately, while it imports for some seconds. Raises OSError."""
        library = ctypes.CDLL(None, use_errno=True)
        if library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot adopt engine processes: prctl(PR_SET_CHILD_SUBREAPER) failed")
        return cls(*start_linked("plimsoll_runtime.driver.process.fork_server"), is_ready=False)

    async def fork(self) -> StandbyProcess:
        """Return a new standby process. Raises StandbyDeadError if the fork server ends instead.

        Raises MemoryLimitError if there is no memory for another process. Cancelling leaves no process.
        """
        forking = asyncio.ensure_future(self._asked())
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(_close)
            raise

    async def _asked(self) -> StandbyProcess:
        async with self._asking:
            await self._until_ready()
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    self._give(Fork(), [theirs.fileno()])
                reply = await self._reply()
                if isinstance(reply, ProcessFailed):
                    raise error_of(reply)
                assert isinstance(reply, Forked)
            except BaseException:
                ours.close()
                raise
        return StandbyProcess(AdoptedProcess(reply.pid), ours, is_ready=False)


def _close(forked: asyncio.Future[StandbyProcess]) -> None:
    """Close a forked process whose caller was cancelled."""
    if not forked.cancelled() and forked.exception() is None:
        forked.result().close()
