"""The load that each replica reports in a header of its responses (the runtime's `api/load/header.py`)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import msgspec

from plimsoll_gateway.discovery.routing_table import Replica

FRESH_SECONDS = 5.0
"""An older report says nothing about the queue. The number of slots does not change."""

UNKNOWN_SLOTS = 64
"""Slots of a replica that has not reported them."""

_REPORT = re.compile(rb"running=(\d{1,6}), waiting=(\d{1,6})(?:, slots=([1-9]\d{0,5}))?, kv=([01]\.\d\d)")


class Report(msgspec.Struct, frozen=True):
    """A replica's report: running and waiting sequences, `others` of them from other clients, its `slots` (None: not
    reported), and the part `kv` of its cache in use.
    """

    others: int
    slots: int | None
    kv: float
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a replica: from its report if it is recent, else from this gateway's own requests.

    `slots` is 0 if it has never been reported.
    """

    running: int
    waiting: int
    slots: int
    kv: float


def read_report(text: bytes, own: int) -> Report | None:
    """Parse the report of a replica that has `own` requests of ours; None if it is not valid."""
    found = _REPORT.fullmatch(text)
    if found is None:
        return None
    first, second, slots, kv = found.groups()
    running, waiting = int(first), int(second)
    others = max(0, running + waiting - own)
    return Report(others, int(slots) if slots else None, float(kv), running, waiting)


class Loads:
    """The last report of each replica, by its id."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.changes = 0  # number of changes of replicas' slots
        self._reports: dict[str, tuple[float, Report]] = {}

    def heard(self, replica_id: str, text: bytes, own: int) -> None:
        """Record the report of a replica that has `own` requests of ours. An invalid one is ignored."""
        report = read_report(text, own)
        if report is not None:
            self.changes += report.slots != self.slots(replica_id)
            self._reports[replica_id] = (self._clock(), report)

    def report(self, replica_id: str) -> Report | None:
        """Return the last report of a replica; None if it is older than FRESH_SECONDS."""
        heard = self._reports.get(replica_id)
        return heard[1] if heard is not None and self._clock() - heard[0] <= FRESH_SECONDS else None

    def reports(self, replicas: Iterable[Replica]) -> list[Report | None]:
        """Return the recent report of each replica, or None."""
        since, known = self._clock() - FRESH_SECONDS, self._reports
        return [
            one[1] if (one := known.get(replica.id)) is not None and one[0] >= since else None for replica in replicas
        ]

    def standing(self, replica_id: str, own: int) -> Standing:
        """Return the state of a replica that has `own` requests of ours.

        Reports are sent while requests run, so that the last one before an idle period says nothing about it.
        """
        fresh, slots = self.report(replica_id), self.slots(replica_id) or 0
        if fresh is not None:
            return Standing(fresh.running, fresh.waiting, slots, fresh.kv)
        running = min(own, slots) if slots else own
        last = self._reports.get(replica_id)
        return Standing(running, own - running, slots, last[1].kv if last is not None and own else 0.0)

    def slots(self, replica_id: str) -> int | None:
        """Return the slots of a replica; None if it has never reported them."""
        heard = self._reports.get(replica_id)
        return None if heard is None else heard[1].slots

    def keep(self, replica_ids: Collection[str]) -> None:
        """Remove the reports of all other replicas."""
        for gone in [known for known in self._reports if known not in replica_ids]:
            del self._reports[gone]
            self.changes += 1
