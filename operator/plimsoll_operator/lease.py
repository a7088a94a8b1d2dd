"""Who of several operators acts: the holder of a Lease (coordination.k8s.io), and only while it is sure of it.

Clocks of different machines are never compared: another's Lease counts as expired when *we* have seen no change of it
for its whole duration. Our own hold ends, by our monotonic clock, so early that a write which began while we held it
has ended before anybody else could act (`MARGIN` is longer than a write may take).

The Lease is the chart's, empty: one without a holder is taken at once. A missing one is made, after it has been missing
for a whole duration: somebody may have deleted it while its holder still acted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from plimsoll_operator.api import WRITE_SECONDS, Api, ApiError
from plimsoll_operator.identity import Object, ObjectKey

logger = logging.getLogger(__name__)

DURATION = 20
MARGIN = WRITE_SECONDS + 1.0
RENEW_EVERY = 3.0
RETRY_EVERY = 2.0


class LeaseLostError(Exception):
    """The Lease could not be renewed in time: somebody else may act now, so this process must not."""


class Lease:
    """One candidate's view of the Lease."""

    def __init__(self, api: Api, key: ObjectKey, identity: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._key = key
        self._identity = identity
        self._clock = clock
        self._held_until = float("-inf")
        self._seen: tuple[object, float] | None = None

    @property
    def held(self) -> bool:
        """Whether this process may begin a write now."""
        return self._clock() < self._held_until

    async def acquire(self) -> None:
        """Return once the Lease is ours."""
        said = ""
        while True:
            try:
                holder = await self.take()
                news = f"standing by: {holder or 'nobody yet'} holds the Lease {self._key}"
            except ApiError as error:
                news = f"standing by: the Lease {self._key} cannot be had: {error}"
            if self.held:
                logger.info("this operator (%s) holds the Lease %s", self._identity, self._key)
                return
            if news != said:
                said = news
                logger.info(news)
            await asyncio.sleep(RETRY_EVERY)

    async def keep(self) -> None:
        """Renew for ever. Raises LeaseLostError when it cannot, or somebody else has it."""
        while True:
            await asyncio.sleep(RENEW_EVERY)
            await self.renew()

    async def renew(self) -> None:
        """Stay the holder. One request that fails is not the end yet. Raises LeaseLostError."""
        started = self._clock()
        try:
            lease = await self._api.lease(self._key)
            if lease is None:
                raise self._lost("has been deleted")
            if (holder := _holder(lease)) != self._identity:
                raise self._lost(f"is held by {holder or 'nobody'}")
            await self._put(lease, started)
        except ApiError as error:
            logger.warning("the Lease %s could not be renewed: %s", self._key, error)
        if not self.held:
            raise self._lost(f"could not be renewed for {DURATION - MARGIN:.0f} s")

    async def release(self) -> None:
        """Let the next one have it at once. Nothing may be written after this."""
        if self._held_until == float("-inf"):
            return
        self._held_until = float("-inf")
        with contextlib.suppress(ApiError):
            lease = await self._api.lease(self._key)
            if lease is not None and _holder(lease) == self._identity:
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._api.replace_lease({**lease, "spec": spec})

    async def take(self) -> str:
        """Take the Lease if it is free; returns who holds it then, "" when nobody does yet. Raises ApiError."""
        started = self._clock()
        lease = await self._api.lease(self._key)
        if lease is None:
            if not self._unchanged("missing", DURATION):
                return ""
            metadata = {"name": self._key.name, "namespace": self._key.namespace}
            await self._api.create_lease(self._record({"metadata": metadata}))
            self._held_until = started + DURATION - MARGIN
            return self._identity
        holder = _holder(lease)
        if holder and holder != self._identity and not self._expired(lease):
            return holder
        await self._put(lease, started)
        return self._identity

    def _lost(self, why: str) -> LeaseLostError:
        self._held_until = float("-inf")
        return LeaseLostError(f"the Lease {self._key} {why}")

    async def _put(self, lease: Object, started: float) -> None:
        """Write ourselves down as the holder; a change by somebody else since `lease` was read is a 409."""
        await self._api.replace_lease(self._record(lease))
        self._held_until = started + DURATION - MARGIN

    def _expired(self, lease: Object) -> bool:
        spec = lease["spec"]
        mark = (lease["metadata"].get("uid"), lease["metadata"].get("resourceVersion"))
        return self._unchanged(mark, float(spec.get("leaseDurationSeconds") or DURATION))

    def _unchanged(self, mark: object, seconds: float) -> bool:
        """Whether this is what was seen all the time for longer than so many seconds."""
        now = self._clock()
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, now)
        return now - self._seen[1] > seconds

    def _record(self, lease: Object) -> dict[str, Any]:
        old = lease.get("spec") or {}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = old.get("holderIdentity") == self._identity
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": lease["metadata"],
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": DURATION,
                "acquireTime": old.get("acquireTime") if ours else now,
                "renewTime": now,
                "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if ours else 1),
            },
        }


def _holder(lease: Object) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")
