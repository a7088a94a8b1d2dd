"""Turns: only one group of several pods is placed at a time, so that no two groups each hold a part of what both need.

A group is being placed from the creation of its leader until all of its pods have a node. If they do not all get one in
time, its pods are deleted (it is given back), and the next group has its turn. Groups that were never tried go first,
the oldest first; one that was given back tries again after increasing waits. The turns are only in memory: after a
restart, pods without a node show which groups are being placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from plimsoll_operator.metrics import GIVEN_BACK, WAITING_GROUPS
from plimsoll_operator.spec.identity import ObjectKey

FIRST_RETRY, LONGEST_RETRY = timedelta(seconds=10), timedelta(seconds=300)
VACATED_AFTER = timedelta(seconds=3)
"""Time after which the pods of a group that was given back are gone, so that the next group can have their room."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What an object knows of its turn. `limited`: whether groups are placed one at a time. `may_place`: whether it may
    create a group now. `crowded`: whether a group that was never tried waits for the present one. `tries`: how often
    groups of the object were given back since it was last complete. `words`: why the last one was, "" for never.
    `retry_in`: the time until the next try, None if it may try. `since`: when the first one was given back after the
    last group was placed, None for never. `avoid`: the values of `topologyKey` where groups of the object got no nodes
    since then, so that its next leader is not placed there if possible. `rejected_at`: since when the API server has
    rejected new pods, None if it has not; such tries count too.
    """

    limited: bool = False
    may_place: bool = True
    crowded: bool = False
    tries: int = 0
    words: str = ""
    retry_in: timedelta | None = None
    since: datetime | None = None
    avoid: tuple[str, ...] = ()
    rejected_at: datetime | None = None


UNLIMITED = Turn()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An object whose next group waits. `created`: when the object was created. `retry_at`: not before this time.
    `wanted`: False while the object wants no further group, for example because the last one loads during a roll. The
    other fields are those of `Turn`.
    """

    created: datetime
    retry_at: datetime
    tries: int = 0
    words: str = ""
    since: datetime | None = None
    avoid: tuple[str, ...] = ()
    wanted: bool = True
    rejected_at: datetime | None = None

    @property
    def order(self) -> tuple[bool, datetime]:
        """The key by which waiting objects are sorted."""
        return (True, self.retry_at) if self.tries else (False, self.created)

    def is_due(self, now: datetime) -> bool:
        """Return whether the object wants a group and may try to place it."""
        return self.wanted and self.retry_at <= now


class GroupTurns:
    """The turns of all objects. Without `limited`, each object may always place all of its groups."""

    def __init__(self, *, limited: bool = True) -> None:
        self._limited = limited
        self._placing: set[ObjectKey] = set()
        self._waiting: dict[ObjectKey, _Waiting] = {}
        self._vacated: datetime | None = None

    def turn(self, key: ObjectKey, created: datetime, *, placing: bool, now: datetime) -> Turn:
        """Return the turn of an object that may want a group, before its plan is made; call `note` with the plan.
        `placing`: whether a group of it is being placed. An object that gets the turn has it until `note`.
        """
        if not self._limited:
            return UNLIMITED
        known = self._waiting.get(key) or _Waiting(created, now)
        if placing:
            self._placing.add(key)
        elif key in self._placing:
            self._placing.discard(key)
            if known.tries:  # A group was placed: the next one is tried at once.
                known = self._waiting[key] = replace(known, retry_at=now, tries=1, since=None, avoid=())
        next_try = max(known.retry_at, self._vacated or known.retry_at)
        due = next_try <= now
        may = not self._placing and due and not self._before(key, known, now)
        if may:
            self._placing.add(key)
        others = (waiting for other, waiting in self._waiting.items() if other != key)
        return Turn(
            limited=True,
            may_place=may,
            crowded=any(waiting.is_due(now) and not waiting.tries for waiting in others),
            tries=known.tries,
            words=known.words,
            retry_in=None if due else next_try - now,
            since=known.since,
            avoid=known.avoid,
            rejected_at=known.rejected_at,
        )

    def note(
        self,
        key: ObjectKey,
        created: datetime,
        now: datetime,
        *,
        placing: bool,
        waits: bool,
        given_back: str = "",
        place: str = "",
        rejected_at: datetime | None = None,
    ) -> Sequence[ObjectKey]:
        """Store what an object's plan does. Call `end` instead if it wants no group. `placing`: it creates a group, or
        one is being placed. `waits`: it wants a group and may not create it. `given_back`: why it deletes one that got
        no nodes, or that was rejected. `place`: the value of `topologyKey` there, "" for none. `rejected_at`: as in
        `Turn`. Return the objects that need a reconcile because of this.
        """
        if not self._limited:
            return []
        woken, known = list[ObjectKey](), self._waiting.get(key)
        if given_back:
            self._give_back(key, known or _Waiting(created, now), now, given_back, place, rejected_at)
        elif waits and (known is None or not known.wanted):
            self._waiting[key] = _Waiting(created, now) if known is None else replace(known, wanted=True)
            woken += self._placing - {key}
        elif known is not None:
            self._waiting[key] = replace(known, wanted=waits, rejected_at=rejected_at)
        if not placing or given_back:
            self._placing.discard(key)
        return self._count([*woken, *self._next(now)])

    def interrupt(self, key: ObjectKey, created: datetime, now: datetime) -> Sequence[ObjectKey]:
        """Take the turn from an object whose reconcile has failed, so that others go first; its pods show later if a
        group is being placed nevertheless. Return the objects that need a reconcile because of this.
        """
        if key not in self._placing:
            return []
        self._placing.discard(key)
        known = self._waiting.get(key) or _Waiting(created, now)
        self._waiting[key] = replace(known, retry_at=max(known.retry_at, now + FIRST_RETRY))
        return self._count(self._next(now))

    def end(self, key: ObjectKey, now: datetime) -> Sequence[ObjectKey]:
        """Remove an object that wants no groups any more. Return the objects that need a reconcile because of this."""
        if key not in self._placing and key not in self._waiting:
            return []
        self._placing.discard(key)
        self._waiting.pop(key, None)
        return self._count(self._next(now))

    def make_room(self, now: datetime) -> Sequence[ObjectKey]:
        """Let groups that were given back try again soon, because pods or nodes have changed. Return them."""
        soon = now + FIRST_RETRY
        woken = [key for key, waiting in self._waiting.items() if waiting.retry_at > soon]
        for key in woken:
            self._waiting[key] = replace(self._waiting[key], retry_at=soon)
        return woken

    def check_integrity(self) -> None:
        """Raise AssertionError if a waiting object has contradictory times."""
        for waiting in self._waiting.values():
            assert bool(waiting.tries) == bool(waiting.words)

    def _before(self, key: ObjectKey, known: _Waiting, now: datetime) -> bool:
        """Return whether another object goes first."""
        return any(
            other != key and waiting.is_due(now) and waiting.order < known.order
            for other, waiting in self._waiting.items()
        )

    def _give_back(
        self, key: ObjectKey, known: _Waiting, now: datetime, words: str, place: str, rejected_at: datetime | None
    ) -> None:
        if rejected_at is None:
            GIVEN_BACK.inc()
            self._vacated = now + VACATED_AFTER
        # If a leader came to such a place again, all places have been tried.
        avoid = known.avoid if not place else (place,) if place in known.avoid else (*known.avoid, place)
        self._waiting[key] = replace(
            known,
            retry_at=now + min(LONGEST_RETRY, FIRST_RETRY * 2 ** min(known.tries, 10)),
            tries=known.tries + 1,
            words=words,
            since=known.since or now,
            avoid=avoid,
            wanted=True,
            rejected_at=rejected_at,
        )

    def _next(self, now: datetime) -> list[ObjectKey]:
        """Return the object whose turn it is, as a list; empty if a group is being placed or none is due."""
        due = [(waiting.order, key) for key, waiting in self._waiting.items() if waiting.is_due(now)]
        return (
            []
            if self._placing or not due
            else [min(due, key=lambda each: (each[0], each[1].namespace, each[1].name))[1]]
        )

    def _count(self, woken: list[ObjectKey]) -> list[ObjectKey]:
        WAITING_GROUPS.set(sum(waiting.wanted for waiting in self._waiting.values()))
        return woken
