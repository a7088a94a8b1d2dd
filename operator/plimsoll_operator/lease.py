"""Who of several operators acts: the holder of a Lease (coordination.k8s.io), and only while it is sure of it.

Clocks of different machines are never compared: another's lease counts as expired when *we* have seen no change of it
for its whole duration. Our own hold ends, by our monotonic clock, before anybody else could think so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from plimsoll_operator.api import Api, ApiError
from plimsoll_operator.identity import Object, ObjectKey

logger = logging.getLogger(__name__)

DURATION = 15
RENEW_EVERY = 4.0
MARGIN = 4.0
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
        """Whether this process may act now."""
        return self._clock() < self._held_until

    async def acquire(self) -> None:
        """Return once the Lease is ours."""
        waiting_for = ""
        while True:
            try:
                holder = await self._try_once()
            except ApiError as error:
                logger.warning("the Lease %s cannot be had: %s", self._key, error)
                holder = None
            if self.held:
                logger.info("this operator (%s) holds the Lease %s", self._identity, self._key)
                return
            if holder and holder != waiting_for:
                waiting_for = holder
                logger.info("standing by: %s holds the Lease %s", holder, self._key)
            await asyncio.sleep(RETRY_EVERY)

    async def keep(self) -> None:
        """Renew for ever. Raises LeaseLostError when it cannot, or somebody else has it."""
        while True:
            await asyncio.sleep(RENEW_EVERY)
            try:
                holder = await self._try_once()
            except ApiError as error:
                logger.warning("the Lease %s could not be renewed: %s", self._key, error)
                holder = self._identity
            if not self.held or holder not in (self._identity, None):
                raise LeaseLostError(f"the Lease {self._key} is held by {holder}")

    async def release(self) -> None:
        """Let the next one have it at once."""
        if not self.held:
            return
        self._held_until = float("-inf")
        with contextlib.suppress(ApiError):
            lease = await self._api.lease(self._key)
            if lease is not None and lease.get("spec", {}).get("holderIdentity") == self._identity:
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._api.replace_lease({**lease, "spec": spec})

    async def _try_once(self) -> str | None:
        """Take or renew the Lease if that is possible; returns who holds it then. Raises ApiError."""
        started = self._clock()
        lease = await self._api.lease(self._key)
        if lease is None:
            await self._api.create_lease(self._record({"metadata": self._metadata()}))
        else:
            holder = lease.get("spec", {}).get("holderIdentity")
            if holder and holder != self._identity and not self._expired(lease):
                return str(holder)
            try:
                await self._api.replace_lease(self._record(lease))
            except ApiError as error:
                if error.code == 409:
                    return None
                raise
        self._held_until = started + DURATION - MARGIN
        return self._identity

    def _expired(self, lease: Object) -> bool:
        spec = lease["spec"]
        mark = (spec.get("holderIdentity"), spec.get("renewTime"), lease["metadata"].get("resourceVersion"))
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, self._clock())
            return False
        return self._clock() - self._seen[1] > float(spec.get("leaseDurationSeconds") or DURATION)

    def _metadata(self) -> dict[str, Any]:
        return {"name": self._key.name, "namespace": self._key.namespace}

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
