"""How busy each replica says it is, in a header of its answers (the runtime's `api/load/header.py`)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import msgspec

from plimsoll_gateway.discovery.routing_table import Replica

FRESH_SECONDS = 5.0
"""What was said longer ago tells nothing of the queue; how many places a batch has does not change."""

UNKNOWN_SLOTS = 64
"""Sequences of a batch, of a replica that has not answered yet or does not tell."""

_REPORT = re.compile(rb"running=(\d{1,6}), waiting=(\d{1,6})(?:, slots=([1-9]\d{0,5}))?, kv=([01]\.\d\d)")


class Report(msgspec.Struct, frozen=True):
    """Sequences that run and wait at a replica, `others` of them not ours; `slots` of a batch (None: untold), and the
    share `kv` of its cache in use.
    """

    others: int
    slots: int | None
    kv: float
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Standing:
    """How a replica stands: what it said of itself within the last seconds, else what is known here.

    `slots` 0: it has never told.
    """

    running: int
    waiting: int
    slots: int
    kv: float


def read_report(text: bytes, own: int) -> Report | None:
    """What a replica says that has `own` requests of ours; None where it is nothing of this kind."""
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
        self.changes = 0  # of how many sequences a replica batches
        self._reports: dict[str, tuple[float, Report]] = {}

    def heard(self, replica_id: str, text: bytes, own: int) -> None:
        """A replica that has `own` requests of ours says this of itself. What cannot be read changes nothing."""
        report = read_report(text, own)
        if report is not None:
            self.changes += report.slots != self.slots(replica_id)
            self._reports[replica_id] = (self._clock(), report)

    def report(self, replica_id: str) -> Report | None:
        """What it said within the last seconds."""
        heard = self._reports.get(replica_id)
        return heard[1] if heard is not None and self._clock() - heard[0] <= FRESH_SECONDS else None

    def reports(self, replicas: Iterable[Replica]) -> list[Report | None]:
        """What each of them said within the last seconds."""
        since, known = self._clock() - FRESH_SECONDS, self._reports
        return [
            one[1] if (one := known.get(replica.id)) is not None and one[0] >= since else None for replica in replicas
        ]

    def standing(self, replica_id: str, own: int) -> Standing:
        """How it stands, which has `own` requests of ours now.

        A report is made while a request is there, so the last one before a rest says nothing of the rest.
        """
        fresh, slots = self.report(replica_id), self.slots(replica_id) or 0
        if fresh is not None:
            return Standing(fresh.running, fresh.waiting, slots, fresh.kv)
        running = min(own, slots) if slots else own
        last = self._reports.get(replica_id)
        return Standing(running, own - running, slots, last[1].kv if last is not None and own else 0.0)

    def slots(self, replica_id: str) -> int | None:
        """How many sequences its batch may have; None where it has never told."""
        heard = self._reports.get(replica_id)
        return None if heard is None else heard[1].slots

    def keep(self, replica_ids: Collection[str]) -> None:
        """Forget all others."""
        for gone in [known for known in self._reports if known not in replica_ids]:
            del self._reports[gone]
            self.changes += 1
