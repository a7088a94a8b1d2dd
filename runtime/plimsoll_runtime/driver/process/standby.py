"""Standby processes, which have no model yet, and the fork server that makes them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import subprocess

from plimsoll_runtime.driver.process.control_socket import AdoptedProcess, ControlledProcess, start_linked
from plimsoll_runtime.driver.process.exit_errors import error_of
from plimsoll_runtime.driver.process.handshake import Fork, Forked, Measure, Needs, Prepare, Refused, Reply, Start
from plimsoll_runtime.driver.process.heartbeat import new_page
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.weights.image import Image


class StandbyProcess(ControlledProcess):
    """One process. It becomes one engine, or is closed."""

    def __init__(
        self, process: subprocess.Popen[bytes] | AdoptedProcess, end: socket.socket, *, is_ready: bool
    ) -> None:
        super().__init__(process, end, is_ready=is_ready)
        self.page = new_page()

    @classmethod
    def spawn(cls, *, threads: int | None = None, factory: str | None = None) -> StandbyProcess:
        """Start a process that imports only what it is told to need; returns at once.

        `threads`: what OpenMP is told to have at most, where that is known already. `factory`: what will build its
        engine, where that is known; it imports that at once. Raises StandbyDeadError.
        """
        environment = dict(os.environ)
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        standby = cls(*start_linked("plimsoll_runtime.driver.process.engine_process", environment), is_ready=True)
        if factory is not None:
            standby._give(Prepare(factory))
        return standby

    async def needs(self, config: EngineConfig, kv: int | None = None) -> Needs:
        """What a model would take, with `kv` bytes of KV cache for good (None: the least, or `config.kv_memory`).

        Its files are found as a load finds them; what a hub has is fetched first, which the process is busy with.
        Raises what a load would: SourceError, ModelError, MemoryLimitError, UsageError, DeviceLostError; and
        StandbyDeadError when it ends instead. Cancelled, it cannot be asked again, but still be started.
        """
        async with self._asking:
            await self._until_ready()
            self._give(Measure(config, kv))
            reply = await self._reply()
        if isinstance(reply, Refused):
            raise error_of(reply.kind, reply.message, device_lost=reply.device_lost)
        assert isinstance(reply, Needs)
        return reply

    def start(self, order: Start, image: Image | None) -> None:
        """Tell it what to be: from now on process, control socket and page are the caller's.

        Raises StandbyDeadError for one that has ended, UsageError for one that was told before.
        """
        self._check_free()
        self._give(order, [self.page] if image is None else [self.page, image.descriptor])
        self._is_ours = False

    def close(self) -> None:
        """End it, unless it is an engine. May be called again."""
        if self._is_ours:
            os.close(self.page)
        super().close()

    async def _reply(self) -> Reply:
        self._check_free()
        return await super()._reply()

    def _check_free(self) -> None:
        if not self._is_ours:
            raise UsageError("this standby process was closed, or is an engine already; spawn another")


PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h: processes below this one that lose their parent become its children."""


class ForkServer(ControlledProcess):
    """The side of whoever wants engines. The process ends when this one does; engines go on without it.

    It has imported what every engine needs, so those imports are in memory once, however many engines there are: an
    engine's own memory is what it writes to. A forked process is at once the child of this process, which gets its exit
    code.
    """

    @classmethod
    def spawn(cls) -> ForkServer:
        """Start the process; returns at once, while it imports for some seconds. Raises OSError."""
        library = ctypes.CDLL(None, use_errno=True)
        if library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "engines cannot be adopted: prctl(PR_SET_CHILD_SUBREAPER)")
        return cls(*start_linked("plimsoll_runtime.driver.process.fork_server"), is_ready=False)

    async def fork(self) -> StandbyProcess:
        """Another process that stands by. Raises StandbyDeadError when the fork server ends instead.

        Raises MemoryLimitError where there is no room for one more process. Cancelled, it leaves no process.
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
                if isinstance(reply, Refused):
                    raise error_of(reply.kind, reply.message)
                assert isinstance(reply, Forked)
            except BaseException:
                ours.close()
                raise
        return StandbyProcess(AdoptedProcess(reply.pid), ours, is_ready=False)


def _close(forked: asyncio.Future[StandbyProcess]) -> None:
    """Nobody wants it any more."""
    if not forked.cancelled() and forked.exception() is None:
        forked.result().close()
