"""Which replica takes the next request: the one with the fewest requests in flight."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from plimsoll_gateway.table import Replica

# How long a replica that could not be reached is only a last resort. A node that vanishes keeps its pods "Ready"
# for about 40 s, and with nothing in flight they would otherwise look like the best choice for each request.
SUSPECT_SECONDS = 2.0


class Picker:
    """Counts the requests in flight at each replica and chooses by that count.

    Equals are taken in turn, beginning at `first_turn`, so that several gateways need not agree to spread load.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, first_turn: int = 0) -> None:
        self._clock = clock
        self._turn = first_turn
        self._in_flight: dict[str, int] = {}
        self._suspect_until: dict[str, float] = {}
        self._ejected: set[str] = set()

    def in_flight(self, replica_id: str) -> int:
        """Requests that hold this replica now."""
        return self._in_flight.get(replica_id, 0)

    def pick(self, replicas: Sequence[Replica], avoid: Collection[str] = ()) -> Replica | None:
        """The least loaded replica with an id not in `avoid`, or None; suspects only where nothing else is."""
        choices = [replica for replica in replicas if replica.id not in avoid]
        choices = [replica for replica in choices if not self._is_suspect(replica.id)] or choices
        if not choices:
            return None
        least = min(self.in_flight(replica.id) for replica in choices)
        equals = [replica for replica in choices if self.in_flight(replica.id) == least]
        self._turn += 1
        return equals[self._turn % len(equals)]

    @contextmanager
    def hold(self, replica: Replica) -> Iterator[None]:
        """Count one request at `replica` for as long as the block runs."""
        self._in_flight[replica.id] = self.in_flight(replica.id) + 1
        try:
            yield
        finally:
            left = self._in_flight[replica.id] - 1
            if left:
                self._in_flight[replica.id] = left
            else:
                del self._in_flight[replica.id]

    def failed(self, replica: Replica) -> None:
        """Remember that `replica` could not be reached."""
        now = self._clock()
        self._suspect_until = {key: until for key, until in self._suspect_until.items() if until > now}
        self._suspect_until[replica.id] = now + SUSPECT_SECONDS

    def answered(self, replica: Replica) -> None:
        """Forget an earlier failure of `replica`."""
        self._suspect_until.pop(replica.id, None)

    def eject(self, replica: Replica) -> None:
        """Make `replica` a last resort until it is readmitted."""
        self._ejected.add(replica.id)

    def readmit(self, replica: Replica) -> None:
        """Choose `replica` like any other again."""
        self._ejected.discard(replica.id)

    def _is_suspect(self, replica_id: str) -> bool:
        if replica_id in self._ejected:
            return True
        until = self._suspect_until.get(replica_id)
        return until is not None and until > self._clock()

    def check_integrity(self) -> None:
        """Raise AssertionError where a count is impossible."""
        assert all(count > 0 for count in self._in_flight.values()), f"idle replicas are kept: {self._in_flight}"
