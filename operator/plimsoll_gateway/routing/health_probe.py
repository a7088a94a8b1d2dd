"""Finds replicas that accept requests and do not respond.

The time of a response cannot be limited: one that is not streamed begins when it is complete. Silence alone therefore
proves nothing. If requests wait for a replica that has been silent for a while, the gateway requests its /health; the
runtime answers it whatever its model does, and any status is a sign of life. A replica that fails several probes in a
row is ejected: it gets requests only if there is no other, until it responds again, and the requests that wait for it
are sent to another replica.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from types import TracebackType

from plimsoll_gateway.discovery.routing_table import Model, Replica, TableStore
from plimsoll_gateway.routing.pick import Picker
from plimsoll_gateway.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

QUIET_SECONDS = 10.0  # of silence before a probe, and between two probes that succeed
AGAIN_SECONDS = 5.0  # between two probes of an ejected replica
MISSES = 3  # in a row: a single one may be lost in a short pause
TICK_SECONDS = 1.0

Ask = Callable[[Replica], Awaitable[bool]]


class SilentError(Exception):
    """The replica was ejected while the request waited for its response."""


class Prober:
    """Probes the replicas that requests wait for. `ask` returns whether a replica answers /health at all."""

    def __init__(
        self,
        ask: Ask,
        store: TableStore,
        picker: Picker,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ask = ask
        self._store = store
        self._picker = picker
        self._metrics = metrics
        self._clock = clock
        self._sleep = sleep
        self._vigils: dict[str, Vigil] = {}

    def listen(self, replica: Replica, model: Model) -> Listening:
        """Return a context in which a request waits for the headers of its response. It raises SilentError if failed
        probes eject the replica meanwhile.
        """
        return Listening(self, self._vigil(replica, model))

    def eject(self, replica: Replica, model: Model) -> None:
        """Eject a replica that does not accept connections, until it responds."""
        self._eject(self._vigil(replica, model))

    async def run(self) -> None:
        """Send due probes until cancelled."""
        async with asyncio.TaskGroup() as questions:
            while True:
                await self._sleep(TICK_SECONDS)
                for vigil in self.due():
                    questions.create_task(self.question(vigil))

    def due(self) -> list[Vigil]:
        """Return the replicas to probe. Also forgets ejected replicas that are gone."""
        now, table = self._clock(), self._store.current
        known = {replica.id for model in (table.models if table else ()) for replica in model.replicas}
        for vigil in list(self._vigils.values()):
            if vigil.ejected and vigil.replica.id not in known:  # a deleted replica does not return under its id
                self._readmit(vigil)
        return [vigil for vigil in self._vigils.values() if vigil.is_due(now)]

    async def question(self, vigil: Vigil) -> None:
        """Probe one replica, and eject it after too many failures."""
        vigil.asking = True
        before = vigil.heard
        try:
            alive = await self._ask(vigil.replica)
        finally:
            vigil.asking = False
            vigil.asked = self._clock()
        if alive or vigil.heard != before:
            self.answered(vigil)
            self.forget_idle(vigil)
            return
        vigil.misses += 1
        if vigil.misses >= MISSES:
            self._eject(vigil)
            vigil.expire()

    def _vigil(self, replica: Replica, model: Model) -> Vigil:
        vigil = self._vigils.get(replica.id)
        if vigil is None:
            vigil = self._vigils[replica.id] = Vigil(replica, model, self._clock())
        return vigil

    def answered(self, vigil: Vigil) -> None:
        """Record that the replica responded, and readmit it if it was ejected."""
        vigil.heard = self._clock()
        vigil.misses = 0
        if vigil.ejected:
            log.info("replica %s of %s responds again", vigil.replica.id, vigil.model.key)
            self._readmit(vigil)

    def _eject(self, vigil: Vigil) -> None:
        if vigil.ejected:
            return
        log.warning("replica %s of %s is ejected: it does not respond", vigil.replica.id, vigil.model.key)
        vigil.ejected = True
        self._picker.eject(vigil.replica)
        self._metrics.of(vigil.model.key, self._metrics.ejections).inc()

    def _readmit(self, vigil: Vigil) -> None:
        vigil.ejected = False
        self._picker.readmit(vigil.replica)
        self.forget_idle(vigil)

    def forget_idle(self, vigil: Vigil) -> None:
        """Forget a replica that no request waits for, unless it is ejected."""
        if not vigil.waiting and not vigil.ejected:
            self._vigils.pop(vigil.replica.id, None)

    def check_integrity(self) -> None:
        """Raise AssertionError if a replica is watched without reason."""
        for vigil in self._vigils.values():
            assert vigil.waiting or vigil.ejected, f"no request waits for {vigil.replica.id}"


class Vigil:
    """A replica that requests wait for, or that is ejected, with its probes. `heard`: the last sign of life. `misses`:
    failed probes in a row.
    """

    def __init__(self, replica: Replica, model: Model, now: float) -> None:
        self.replica = replica
        self.model = model
        self.waiting: set[Listening] = set()
        self.heard = now
        self.asked = now
        self.asking = False
        self.misses = 0
        self.ejected = False

    def is_due(self, now: float) -> bool:
        """Return whether a probe is due."""
        if self.asking:
            return False
        if self.ejected:
            return now - self.asked >= AGAIN_SECONDS
        return self.misses > 0 or now - self.heard >= QUIET_SECONDS

    def expire(self) -> None:
        """End the waits of all requests for this replica with SilentError."""
        for listening in tuple(self.waiting):
            listening.expire()


class Listening:
    """The wait of one request: like `asyncio.timeout`, but ended by the prober."""

    __slots__ = ("_cancelling", "_expired", "_prober", "_task", "_vigil")

    def __init__(self, prober: Prober, vigil: Vigil) -> None:
        self._prober = prober
        self._vigil = vigil
        self._expired = False

    def expire(self) -> None:
        """End the wait with SilentError."""
        if not self._expired:
            self._expired = True
            self._task.cancel()

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._vigil.waiting.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._vigil.waiting.discard(self)
        if kind is None:
            self._prober.answered(self._vigil)
        self._prober.forget_idle(self._vigil)
        # If the task was also cancelled from elsewhere, that cancellation takes precedence.
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise SilentError from None
