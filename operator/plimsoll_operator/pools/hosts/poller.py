"""Polls every host for its report: one task for each pod, with long-polling requests, and back-off after errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from plimsoll_operator.kube.polling import Polling
from plimsoll_operator.pools.hosts.client import HostClient, HostError
from plimsoll_operator.pools.hosts.host_registry import HostRegistry
from plimsoll_operator.pools.hosts.report import BadReportError

LONGEST_DELAY = 15.0


class Poller:
    """The polling tasks. `sleep` and `clock` are replaceable for tests."""

    def __init__(
        self,
        registry: HostRegistry,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._polling = Polling((HostError, BadReportError), LONGEST_DELAY, sleep)
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}

    def follow(self, uid: str, address: str, client: HostClient) -> None:
        """Poll the host in the pod with this uid from now on; start over if its address has changed."""
        known = self._tasks.get(uid)
        if known is not None and known[0] == address and not known[1].done():
            return
        self.leave(uid)
        self._tasks[uid] = (address, asyncio.create_task(self._ask(uid, client)))

    def leave(self, uid: str) -> None:
        """Stop polling the host."""
        known = self._tasks.pop(uid, None)
        if known is not None:
            known[1].cancel()

    async def close(self) -> None:
        """Cancel all tasks."""
        tasks = [task for _, task in self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, uid: str, client: HostClient) -> None:
        await self._polling.run(
            f"the host of pod {uid}",
            client.report,
            lambda report: self._registry.take(uid, report, self._clock()),
            lambda error: self._registry.fail(uid, str(error), refused=isinstance(error, BadReportError)),
        )
