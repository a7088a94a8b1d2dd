"""How kopf is set up for this operator."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import kopf

from plimsoll_operator.events import CONTROLLER

LONGEST_BACKOFF = 3.0


class Backoffs(Iterable[float]):
    """Seconds between two tries of a request: endless, since kopf ends the operator when they run out.

    kopf cannot be woken while it waits, so the longest wait bounds how late it notices that the API server is back.
    """

    def __iter__(self) -> Iterator[float]:
        return chain((0.2, 0.5, 1.0, 2.0), repeat(LONGEST_BACKOFF))


class NoDiffBase(kopf.DiffBaseStorage):
    """Keeps no last state of objects: only handlers of changes need one, and its copies cost half of each event."""

    def build(self, **_: object) -> kopf.BodyEssence:
        """Nothing."""
        return kopf.BodyEssence({})

    def fetch(self, **_: object) -> None:
        """Nothing."""

    def store(self, **_: object) -> None:
        """Store nothing."""


def configure(settings: kopf.OperatorSettings) -> None:
    """Set everything that differs from kopf's defaults."""
    # Our own Lease decides which process acts: kopf's peering compares clocks of machines and fences no writes.
    settings.peering.standalone = True
    # Our kinds are there (prerequisites.py asks); watching definitions and namespaces would need rights for it.
    settings.scanning.disabled = True
    settings.watching.chunk_size = 500
    settings.watching.server_timeout = 300
    settings.networking.error_backoffs = Backoffs()
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    # kopf keeps an object's last event for this long. 0 makes it spin on Python 3.11.
    settings.queueing.idle_timeout = 0.2
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.process.ultimate_exiting_timeout = None
    # Events are events.py's: kopf's have no action and no reporting instance, and cannot be posted from a worker.
    settings.posting.enabled = False
    settings.posting.reporting_component = CONTROLLER
    # kopf says at INFO that each handler has succeeded.
    logging.getLogger("kopf").setLevel(logging.WARNING)
