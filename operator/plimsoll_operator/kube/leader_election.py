"""Who of several operators acts: the holder of a Lease (coordination.k8s.io), and only while it is sure of it.

Clocks of different machines are never compared: another's Lease counts as expired when *we* have seen no change of it
for its whole duration. Our own hold ends, by our monotonic clock, so early that a write which began while we held it
has ended before anybody else could act (`MARGIN` is longer than a write may take). Whoever gives the Lease back waits
for its writes first (`WritesUnderWay`).

The Lease is the chart's, empty: one without a holder is taken at once. A missing one is made, but for nobody: somebody
may have deleted it while its holder still acts, and only once there is a Lease again can that one not renew. Who takes
the new one waits for it to expire, like any other. What is made belongs to the operator's Deployment and goes with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from plimsoll_operator.kube.api import WRITE_SECONDS, Api, ApiError
from plimsoll_operator.spec.identity import Object, ObjectKey, deployment_reference

logger = logging.getLogger(__name__)

DURATION = 20
MARGIN = WRITE_SECONDS + 1.0
RENEW_EVERY = 3.0
RETRY_EVERY = 2.0
NOBODY = "nobody-yet"
"""Whom a Lease is made for that had been missing."""


class LeaseLostError(Exception):
    """The Lease could not be renewed in time: somebody else may act now, so this process must not."""


class Lease:
    """One candidate's view of the Lease."""

    def __init__(
        self,
        api: Api,
        key: ObjectKey,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        deployment: str | None = None,
    ) -> None:
        self._api = api
        self._key = key
        self._identity = identity
        self._clock = clock
        self._deployment = deployment
        self._held_until = float("-inf")
        self._seen: tuple[object, float] | None = None
        self._leader_seen = clock()
        self._unanswered: str | None = None

    @property
    def held(self) -> bool:
        """Whether this process may begin a write now."""
        return self._clock() < self._held_until

    @property
    def leaderless_seconds(self) -> float:
        """How long nobody has been seen to hold the Lease, this process included."""
        return 0.0 if self.held else self._clock() - self._leader_seen

    async def acquire(self) -> None:
        """Return once the Lease is ours."""
        said = ""
        while True:
            level = logging.INFO
            try:
                holder = await self.take()
                news = f"standing by: {holder or 'nobody yet'} holds the Lease {self._key}"
            except ApiError as error:
                level = logging.WARNING if error.is_passing else logging.ERROR
                news = f"standing by: the Lease {self._key} cannot be had: {error}"
            if self.held:
                logger.info("this operator (%s) holds the Lease %s", self._identity, self._key)
                return
            if news != said:
                said = news
                logger.log(level, news)
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
        """Let the next one have it at once. Nothing may be written after this.

        No write may be under way but one of the Lease itself, whose caller was cancelled.
        """
        if self._unanswered is None and self._held_until == float("-inf"):
            return
        self._held_until = float("-inf")
        try:
            try:
                await self._give_back()
            except ApiError as error:
                if error.code != 409:
                    raise
                await self._give_back()  # the write without an answer has come first
        except ApiError as error:
            logger.warning("the Lease %s is not given back and has to expire: %s", self._key, error)

    async def _give_back(self) -> None:
        """Leave the Lease without a holder, if it is ours or a write that is still under way may make it ours.

        That write is based on the version that is overwritten here, so it is refused from now on.
        """
        lease = await self._api.lease(self._key)
        if lease is None:
            return
        if _holder(lease) == self._identity or lease["metadata"].get("resourceVersion") == self._unanswered:
            freed = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _stamp()}
            await self._api.replace_lease({**lease, "spec": {**(lease.get("spec") or {}), **freed}})

    async def take(self) -> str:
        """Take the Lease if it is free; returns who holds it then, "" when nobody does yet. Raises ApiError."""
        started = self._clock()
        lease = await self._api.lease(self._key)
        if lease is None:
            await self._api.create_lease(self._record({"metadata": await self._metadata()}, NOBODY))
            return ""
        holder = _holder(lease)
        if holder and holder != self._identity and not self._expired(lease):
            if holder == NOBODY:
                return ""
            self._leader_seen = self._clock()
            return holder
        await self._put(lease, started)
        return self._identity

    async def _metadata(self) -> dict[str, Any]:
        """Of a Lease that is made anew. Without its owner it serves as well, and only outlives an uninstall."""
        metadata: dict[str, Any] = {"name": self._key.name, "namespace": self._key.namespace}
        if self._deployment is None:
            return metadata
        try:
            found = await self._api.deployment(ObjectKey(self._key.namespace, self._deployment))
        except ApiError as error:
            logger.warning("the Lease %s is made without an owner: %s", self._key, error)
            return metadata
        return metadata if found is None else {**metadata, "ownerReferences": [deployment_reference(found)]}

    def _lost(self, why: str) -> LeaseLostError:
        self._held_until = float("-inf")
        return LeaseLostError(f"the Lease {self._key} {why}")

    async def _put(self, lease: Object, started: float) -> None:
        """Write ourselves down as the holder; a change by somebody else since `lease` was read is a 409."""
        self._unanswered = lease["metadata"].get("resourceVersion")
        try:
            await self._api.replace_lease(self._record(lease, self._identity))
        except ApiError as error:
            if not error.is_unsure:
                self._unanswered = None
            raise
        self._unanswered = None
        self._held_until = started + DURATION - MARGIN

    def _expired(self, lease: Object) -> bool:
        """Whether we have seen this very state of the Lease for longer than its duration."""
        now, mark = self._clock(), (lease["metadata"].get("uid"), lease["metadata"].get("resourceVersion"))
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, now)
        return now - self._seen[1] > float(lease["spec"].get("leaseDurationSeconds") or DURATION)

    def _record(self, lease: Object, holder: str) -> dict[str, Any]:
        old = lease.get("spec") or {}
        now = _stamp()
        same = old.get("holderIdentity") == holder
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": lease["metadata"],
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": DURATION,
                "acquireTime": old.get("acquireTime") if same else now,
                "renewTime": now,
                "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if same else 1),
            },
        }


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _holder(lease: Object) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")
