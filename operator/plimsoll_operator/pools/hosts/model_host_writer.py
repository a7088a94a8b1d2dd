"""Writes ModelHosts: on change and as a slow heartbeat, at a limited rate, always the latest state of each host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial

from plimsoll_operator.kube.api import Api, ApiError
from plimsoll_operator.kube.plan_executor import NotLeaderError
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.pools.hosts.host_registry import HostRegistry, Known
from plimsoll_operator.pools.hosts.model_host import build_host, host_status, says_the_same
from plimsoll_operator.pools.hosts.rate_limiter import RateLimiter
from plimsoll_operator.spec.identity import Object, ObjectKey

logger = logging.getLogger(__name__)

WRITES_A_SECOND = 20.0
HEARTBEAT_SECONDS = 60.0
RETRY_SECONDS = 2.0
AT_A_TIME = 4
"""The number of concurrent writes: enough for `WRITES_A_SECOND` if a write takes 200 ms."""


class HostWriter:
    """Writes ModelHosts. `draining` returns whether the pod with a uid will be deleted, `admits` whether a pool accepts
    a model.
    """

    def __init__(
        self,
        api: Api,
        stores: Stores,
        registry: HostRegistry,
        rate_limiter: RateLimiter,
        *,
        may_act: Callable[[], bool],
        draining: Callable[[str], bool],
        admits: Callable[[ObjectKey, ObjectKey], bool | None],
        clock: Callable[[], datetime],
    ) -> None:
        self._api = api
        self._stores = stores
        self._registry = registry
        self._rate_limiter = rate_limiter
        self._may_act = may_act
        self._draining = draining
        self._admits = admits
        self._clock = clock
        self._pending: dict[str, bool] = {}
        self._writing: set[str] = set()
        self._wanted = asyncio.Event()
        self._written: dict[str, Object] = {}

    def note(self, uid: str, *, beat: bool = False) -> None:
        """Queue the host in this pod for a write; with `beat`, write it even if it has not changed."""
        self._pending[uid] = self._pending.get(uid, False) or beat
        self._wanted.set()

    async def run(self) -> None:
        """Write forever, several hosts at a time. Raise NotLeaderError in a group."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_A_TIME):
                group.create_task(self._work())

    async def _work(self) -> None:
        """Write queued hosts, each by one worker at a time, because the older of two writes could come last."""
        while True:
            uid = next((uid for uid in self._pending if uid not in self._writing), None)
            if uid is None:
                self._wanted.clear()
                await self._wanted.wait()
                continue
            beat = self._pending.pop(uid)
            self._writing.add(uid)
            try:
                await self.write(uid, beat=beat)
            finally:
                self._writing.discard(uid)
                self._wanted.set()

    async def beat(self) -> None:
        """Queue each host once per heartbeat interval, forever."""
        while True:
            hosts = [known.pod.uid for known in self._registry]
            for uid in hosts:
                await asyncio.sleep(HEARTBEAT_SECONDS / len(hosts))
                self.note(uid, beat=True)
            if not hosts:
                await asyncio.sleep(HEARTBEAT_SECONDS)
            for uid in self._written.keys() - {known.pod.uid for known in self._registry}:
                del self._written[uid]

    async def write(self, uid: str, *, beat: bool = False) -> None:
        """Write one host if its status has changed. Try again later after an error."""
        known = self._registry.get(uid)
        if known is None:
            return
        item = self._stored(known)
        before = (item or {}).get("status") or {}
        admits = partial(self._admits, known.pod.pool)
        status = host_status(known, self._draining(uid), before, self._clock(), admits)
        if item is not None and not beat and says_the_same(status, before):
            return
        await self._rate_limiter.take()
        if not self._may_act():
            raise NotLeaderError("the Lease is lost")
        try:
            if item is None:
                self._written[uid] = await self._api.create(self._stores.hosts.resource, build_host(known.pod))
                self.note(uid, beat=True)
            else:
                self._written[uid] = await self._api.apply_status(item, status)
        except ApiError as error:
            self._written.pop(uid, None)
            logger.warning("cannot write ModelHost %s: %s", known.pod.key, error)
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self.note, uid)

    def _stored(self, known: Known) -> Object | None:
        """Return the object last written, or else the store's; None if that belongs to another pod."""
        written = self._written.get(known.pod.uid)
        if written is not None:
            return written
        entry = self._stores.hosts.get(known.pod.key)
        if entry is None or entry.owner is None or entry.owner.uid != known.pod.uid:
            return None
        return entry.value
