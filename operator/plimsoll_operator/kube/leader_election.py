"""Leader election: only the holder of a Lease (coordination.k8s.io) acts, and only while its hold is certain.

Clocks of different machines are never compared: another's Lease counts as expired after *we* have seen no change of it
for its whole duration. Our own hold ends early, by our monotonic clock: a write that began while we held the Lease has
ended before another operator can act (`MARGIN` is longer than a write may take). An operator that releases the Lease
waits for its writes first (`WritesUnderWay`).

The chart creates the Lease without a holder, and such a Lease is taken immediately. If the Lease is missing, it is
created for a placeholder (`NOBODY`): it may have been deleted while its holder still acts, and only after there is a
Lease again can that holder not renew. Operators wait for the new one to expire, like for any other. A created Lease
belongs to the operator's Deployment and is deleted with it.
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
"""The placeholder for which a missing Lease is created."""


class LeaseLostError(Exception):
    """The Lease could not be renewed in time. Another operator may act, so this process must not."""


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
        """Whether this process may start a write."""
        return self._clock() < self._held_until

    @property
    def leaderless_seconds(self) -> float:
        """Seconds since an operator, including this one, was last seen to hold the Lease."""
        return 0.0 if self.held else self._clock() - self._leader_seen

    async def acquire(self) -> None:
        """Wait until the Lease is ours."""
        said = ""
        while True:
            level = logging.INFO
            try:
                holder = await self.take()
                news = f"standing by: the Lease {self._key} is held by {holder or 'no operator yet'}"
            except ApiError as error:
                level = logging.WARNING if error.is_passing else logging.ERROR
                news = f"standing by: cannot get the Lease {self._key}: {error}"
            if self.held:
                logger.info("this operator (%s) holds the Lease %s", self._identity, self._key)
                return
            if news != said:
                said = news
                logger.log(level, news)
            await asyncio.sleep(RETRY_EVERY)

    async def keep(self) -> None:
        """Renew forever. Raise LeaseLostError if that fails for too long, or if another operator has the Lease."""
        while True:
            await asyncio.sleep(RENEW_EVERY)
            await self.renew()

    async def renew(self) -> None:
        """Renew once. A failed request alone does not end the hold. Raise LeaseLostError if the hold has ended."""
        started = self._clock()
        try:
            lease = await self._api.lease(self._key)
            if lease is None:
                raise self._lost("has been deleted")
            if (holder := _holder(lease)) != self._identity:
                raise self._lost(f"is held by {holder or 'no operator'}")
            await self._put(lease, started)
        except ApiError as error:
            logger.warning("cannot renew the Lease %s: %s", self._key, error)
        if not self.held:
            raise self._lost(f"could not be renewed for {DURATION - MARGIN:.0f} s")

    async def release(self) -> None:
        """Release the Lease, so that another operator can take it immediately. Nothing may be written after this.

        The only running write may be one of the Lease itself, whose caller was cancelled.
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
                await self._give_back()  # The write without a response was executed in between.
        except ApiError as error:
            logger.warning("cannot release the Lease %s, which has to expire: %s", self._key, error)

    async def _give_back(self) -> None:
        """Remove the holder, if it is us or if a running write may still make it us.

        That write is based on the version that is replaced here, so the API server rejects it.
        """
        lease = await self._api.lease(self._key)
        if lease is None:
            return
        if _holder(lease) == self._identity or lease["metadata"].get("resourceVersion") == self._unanswered:
            freed = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _stamp()}
            await self._api.replace_lease({**lease, "spec": {**(lease.get("spec") or {}), **freed}})

    async def take(self) -> str:
        """Take the Lease if it is free. Return its holder, "" if it has none yet. Raise ApiError."""
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
        """Return the metadata of a Lease to create. Without an owner it works as well, but outlives an uninstall."""
        metadata: dict[str, Any] = {"name": self._key.name, "namespace": self._key.namespace}
        if self._deployment is None:
            return metadata
        try:
            found = await self._api.deployment(ObjectKey(self._key.namespace, self._deployment))
        except ApiError as error:
            logger.warning("the Lease %s is created without an owner: %s", self._key, error)
            return metadata
        return metadata if found is None else {**metadata, "ownerReferences": [deployment_reference(found)]}

    def _lost(self, why: str) -> LeaseLostError:
        self._held_until = float("-inf")
        return LeaseLostError(f"the Lease {self._key} {why}")

    async def _put(self, lease: Object, started: float) -> None:
        """Write ourselves as the holder; a change since `lease` was read is a 409."""
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
        """Return whether we have seen this state of the Lease for longer than its duration."""
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
