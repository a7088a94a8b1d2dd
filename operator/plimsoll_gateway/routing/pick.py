"""Picks the replica of a request: the highest score among those below the load bound, else the least busy."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Sequence

from plimsoll_gateway.discovery.routing_table import Replica
from plimsoll_gateway.routing.loads import UNKNOWN_SLOTS, Loads, Standing
from plimsoll_gateway.routing.prefix import place
from plimsoll_gateway.routing.prefix_index import PrefixIndex
from plimsoll_gateway.routing.scorers import ANYTHING, PrefixScorer, RoutingHints, Scorer

# Time for which an unreachable replica is avoided. The pods of a vanished node stay "Ready" for about 40 s, and without
# requests in flight they would be the best choice for each request.
SUSPECT_SECONDS = 2.0
# Bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018): no replica gets more than this times the mean.
BOUND = 1.25
# Below this part of its slots a replica is not busy, whatever the mean: a larger batch costs little, while computing a
# prefix again costs all of it.
LEISURE = 0.25
FULL_KV = 0.95  # with a cache this full, the next request preempts another


class Hold:
    """Counts a request at a replica while it is entered."""

    __slots__ = ("_counts", "_id")

    def __init__(self, counts: dict[str, int], replica_id: str) -> None:
        self._counts = counts
        self._id = replica_id

    def __enter__(self) -> None:
        self._counts[self._id] = self._counts.get(self._id, 0) + 1

    def __exit__(self, *_: object) -> None:
        left = self._counts[self._id] - 1
        if left:
            self._counts[self._id] = left
        else:
            del self._counts[self._id]


class Picker:
    """Counts the requests in flight at each replica, and picks by this count, by reported loads, and by `scorers`.

    Without a preference, the next replica in turn (starting at `first_turn`) is compared with a random one, and the
    less busy one is picked. Several gateways, whose data of each other's requests is old, therefore do not all pick the
    same idle replica.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        first_turn: int = 0,
        draw: random.Random | None = None,
        loads: Loads | None = None,
        scorers: Sequence[Scorer] | None = None,
    ) -> None:
        self._clock = clock
        self._turn = first_turn
        self._draw = draw or random.Random()
        self.loads = loads or Loads(clock)
        self._scorers = [PrefixScorer(PrefixIndex())] if scorers is None else list(scorers)
        self._in_flight: dict[str, int] = {}
        self._suspect_until: dict[str, float] = {}
        self._ejected: set[str] = set()
        # Cached minimum of the replicas of the last pick, valid until the number of slots changes.
        self._row: Sequence[Replica] = ()
        self._row_changes, self._row_leisure = 0, 0.0

    def in_flight(self, replica_id: str) -> int:
        """Return how many of our requests are in flight at this replica."""
        return self._in_flight.get(replica_id, 0)

    def load(self, replica_id: str) -> int:
        """Return how many requests are known at a replica: ours, and those of others in its recent report."""
        report = self.loads.report(replica_id)
        return self._in_flight.get(replica_id, 0) + (0 if report is None else report.others)

    def capacity(self, replicas: Sequence[Replica]) -> int:
        """Return the sum of the slots of these replicas, with a default for those that have not reported them."""
        return sum(self.loads.slots(replica.id) or UNKNOWN_SLOTS for replica in replicas)

    def standing(self, replica: Replica) -> Standing:
        """Return the replica's current state, as far as it is known."""
        return self.loads.standing(replica.id, self.in_flight(replica.id))

    def heard(self, replica: Replica, text: bytes) -> None:
        """Record `text`, the load header of a response of `replica`, while the request is still counted."""
        self.loads.heard(replica.id, text, self.in_flight(replica.id))

    def pick(
        self, replicas: Sequence[Replica], avoid: Collection[str] = (), hints: RoutingHints = ANYTHING
    ) -> Replica | None:
        """Return a replica whose id is not in `avoid`, or None. Recently unreachable and ejected ones are picked only
        if there is no other.
        """
        choices: Sequence[Replica] = [r for r in replicas if r.id not in avoid] if avoid else replicas
        if self._suspect_until or self._ejected:
            choices = [replica for replica in choices if not self._is_suspect(replica.id)] or choices
        if len(choices) > 1:
            choices = self._of_its_revision(choices, hints)
        if len(choices) < 2:
            picked = choices[0] if choices else None
        else:
            picked = self._best(choices, hints) if hints.blocks else self._less_busy(choices)
        if picked is not None and hints.blocks:
            for scorer in self._scorers:
                scorer.sent(hints, picked)
        return picked

    def _of_its_revision(self, choices: Sequence[Replica], hints: RoutingHints) -> Sequence[Replica]:
        """Return the replicas of the revision, stable or canary, that gets this request; all choices if they are of one
        revision.

        The hash of the prefix's first block decides, so that a conversation stays with one revision, and keeps the
        canary as its share grows. Requests without a prefix are assigned at random.
        """
        canary = [replica for replica in choices if replica.share is not None]
        if not canary or len(canary) == len(choices):
            return choices
        first = canary[0]
        assert first.share is not None
        drawn = place(hints.blocks[0], first.revision) if hints.blocks else self._draw.random()
        if drawn * 100 < first.share:
            return canary
        return [replica for replica in choices if replica.share is None]

    def _best(self, choices: Sequence[Replica], hints: RoutingHints) -> Replica:
        """Return the replica below the load bound with the highest score; if none is below it, the least busy."""
        reports, ours = self.loads.reports(choices), self._in_flight
        counts, full = [], False
        for replica, report in zip(choices, reports, strict=True):
            count = ours.get(replica.id, 0)
            if report is not None:
                count += report.others
                full = full or report.kv >= FULL_KV
            counts.append(count)
        bound = math.ceil(BOUND * (sum(counts) + 1) / len(choices))
        open_ones = choices
        if full or max(counts) >= max(bound, self._leisure(choices)):
            open_ones = [
                replica
                for replica, report, count in zip(choices, reports, counts, strict=True)
                if (report is None or report.kv < FULL_KV) and (count < bound or self._is_at_leisure(replica, count))
            ]
            if not open_ones:
                return self._less_busy(choices)
        scores = [scorer.scores(hints, open_ones) for scorer in self._scorers]
        sums = scores[0] if len(scores) == 1 else [sum(each) for each in zip(*scores, strict=True)]
        return open_ones[sums.index(max(sums))] if scores else open_ones[0]

    def _leisure(self, choices: Sequence[Replica]) -> float:
        """Return the LEISURE part of the fewest slots of a replica: with fewer requests, none of them is busy."""
        changes = self.loads.changes
        if self._row is not choices or self._row_changes != changes:
            least = min(self.loads.slots(replica.id) or UNKNOWN_SLOTS for replica in choices)
            self._row, self._row_changes, self._row_leisure = choices, changes, LEISURE * least
        return self._row_leisure

    def _is_at_leisure(self, replica: Replica, count: int) -> bool:
        return count < LEISURE * (self.loads.slots(replica.id) or UNKNOWN_SLOTS)

    def _less_busy(self, choices: Sequence[Replica]) -> Replica:
        """Return the less busy of two replicas, the next in turn and a random one, relative to their slots
        (Mitzenmacher, 2001).
        """
        self._turn += 1
        at = self._turn % len(choices)
        one, other = choices[at], choices[at - self._draw.randrange(1, len(choices))]
        return one if self._strain(one) <= self._strain(other) else other

    def _strain(self, replica: Replica) -> float:
        return self.load(replica.id) / (self.loads.slots(replica.id) or UNKNOWN_SLOTS)

    def hold(self, replica: Replica) -> Hold:
        """Count a request at a replica while the context is entered."""
        return Hold(self._in_flight, replica.id)

    def failed(self, replica: Replica) -> None:
        """Record that `replica` could not be reached."""
        now = self._clock()
        self._suspect_until = {key: until for key, until in self._suspect_until.items() if until > now}
        self._suspect_until[replica.id] = now + SUSPECT_SECONDS

    def answered(self, replica: Replica) -> None:
        """Clear an earlier failure of `replica`."""
        self._suspect_until.pop(replica.id, None)

    def eject(self, replica: Replica) -> None:
        """Avoid `replica` until it is readmitted."""
        self._ejected.add(replica.id)

    def readmit(self, replica: Replica) -> None:
        """Pick `replica` like any other again."""
        self._ejected.discard(replica.id)

    def _is_suspect(self, replica_id: str) -> bool:
        if replica_id in self._ejected:
            return True
        until = self._suspect_until.get(replica_id)
        return until is not None and until > self._clock()

    def check_integrity(self) -> None:
        """Raise AssertionError if a count is impossible."""
        assert all(count > 0 for count in self._in_flight.values()), f"idle replicas have entries: {self._in_flight}"
