"""A process that has imported what every engine needs, and forks one whenever it is asked.

What was imported is then in memory once, however many engines there are: an engine's own memory is what it writes to.
What it forks is at once no child of its own but of whoever started it, which is told when an engine ends, and how.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket

from plimsoll_runtime.driver.adopted import Adopted
from plimsoll_runtime.driver.failures import error_of
from plimsoll_runtime.driver.linked import LinkedProcess, start_linked
from plimsoll_runtime.driver.standby import Standby
from plimsoll_runtime.driver.start import Fork, Forked, Refused

PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h: processes below this one that lose their parent become its children."""


class ForkServer(LinkedProcess):
    """The side of whoever wants engines. The process ends when this one does; engines go on without it."""

    @classmethod
    def spawn(cls) -> ForkServer:
        """Start the process; returns at once, while it imports for some seconds. Raises OSError."""
        library = ctypes.CDLL(None, use_errno=True)
        if library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "engines cannot be adopted: prctl(PR_SET_CHILD_SUBREAPER)")
        return cls(*start_linked("plimsoll_runtime.driver.forking"), is_ready=False)

    async def fork(self) -> Standby:
        """Another process that stands by. Raises StandbyDeadError when the fork server ends instead.

        Raises MemoryLimitError where there is no room for one more process. Cancelled, it leaves no process.
        """
        forking = asyncio.ensure_future(self._asked())
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(_close)
            raise

    async def _asked(self) -> Standby:
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
        return Standby(Adopted(reply.pid), ours, is_ready=False)


def _close(forked: asyncio.Future[Standby]) -> None:
    """Nobody wants it any more."""
    if not forked.cancelled() and forked.exception() is None:
        forked.result().close()
