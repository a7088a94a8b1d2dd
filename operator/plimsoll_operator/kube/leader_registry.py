"""The leaders of groups that do not serve: when to ask each of them, and what it last said.

Reconciles say which leaders these are, and read the words; the poller asks. Nothing here waits.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.status.groups import Leader

EVERY_SECONDS = 2.0
"""Pause between two requests to one leader. It doubles with each request that fails, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE = 10.0
SHOW_SECONDS = 5.0
"""Least time between two changes of a model's words, each of which is a write of its status."""
NOW = -math.inf


@dataclass(slots=True, eq=False)
class Entry:
    """A leader that is to be asked, until it is `gone`."""

    key: ObjectKey
    leader: Leader
    words: str = ""
    failures: int = 0
    gone: bool = False
    _complained: bool = False

    def may_complain(self) -> bool:
        """Return whether to log a bad answer of this leader: only the first one."""
        first, self._complained = not self._complained, True
        return first


@dataclass(slots=True)
class _Model:
    """`shown`: the words for reconciles, by the uid of the leader's pod, as of `shown_at`."""

    entries: dict[str, Entry] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    shown_at: float = NOW

    @property
    def words(self) -> dict[str, str]:
        """The latest words."""
        return {uid: entry.words for uid, entry in self.entries.items() if entry.words}


class LeaderRegistry:
    """The leaders to ask, by model. Times are seconds of one clock. `changed` is set when a leader was added."""

    def __init__(self) -> None:
        self._models: dict[ObjectKey, _Model] = {}
        self._queue: list[tuple[float, int, Entry]] = []
        self._numbers = itertools.count()
        self._unshown: set[ObjectKey] = set()
        self.changed = asyncio.Event()

    def follow(self, key: ObjectKey, leaders: Iterable[Leader]) -> Mapping[str, str]:
        """Ask these leaders of a model, and no others of it, from now on. Return the last known words of each that has
        any, by the uid of its pod.
        """
        wanted = {leader.uid: leader for leader in leaders}
        model = self._models.get(key)
        if model is None:
            if not wanted:
                return {}
            model = self._models[key] = _Model()
        for uid, entry in list(model.entries.items()):
            if wanted.get(uid) != entry.leader:
                self._drop(model, uid)
        for uid, leader in wanted.items():
            if uid not in model.entries:
                entry = model.entries[uid] = Entry(key, leader)
                self._push(NOW, entry)
                self.changed.set()
        return dict(model.shown)

    def forget(self, key: ObjectKey) -> None:
        """Ask no leader of a model any more."""
        model = self._models.pop(key, None)
        self._unshown.discard(key)
        if model is not None:
            for uid in list(model.entries):
                self._drop(model, uid)

    def take_due(self, now: float, count: int) -> list[Entry]:
        """Remove and return up to `count` leaders that are to be asked now. Call `answered` or `failed` for each."""
        due: list[Entry] = []
        while self._queue and len(due) < count and (self._queue[0][0] <= now or self._queue[0][2].gone):
            _, _, entry = heapq.heappop(self._queue)
            if not entry.gone:
                due.append(entry)
        return due

    def answered(self, entry: Entry, words: str, now: float) -> None:
        """Store the words of a leader, "" if it says that it serves."""
        entry.failures = 0
        self._store(entry, words, now + EVERY_SECONDS)

    def failed(self, entry: Entry, now: float) -> None:
        """Note that a leader gave no valid answer. It has no words then."""
        entry.failures = min(entry.failures + 1, 8)
        self._store(entry, "", now + min(LONGEST_PAUSE, EVERY_SECONDS * 2 ** (entry.failures - 1)))

    def show(self, now: float) -> list[ObjectKey]:
        """Show new words to reconciles, and return the models to reconcile for them."""
        shown = []
        for key in sorted(self._unshown):
            model = self._models[key]
            if model.words == model.shown:
                self._unshown.discard(key)
            elif now >= model.shown_at + SHOW_SECONDS:
                model.shown, model.shown_at = model.words, now
                self._unshown.discard(key)
                shown.append(key)
        return shown

    def next_question(self) -> float:
        """Return when the next leader is to be asked; infinity if there is none."""
        while self._queue and self._queue[0][2].gone:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else math.inf

    def next_show(self) -> float:
        """Return when `show` has something to do; infinity if there is nothing."""
        return min((self._models[key].shown_at + SHOW_SECONDS for key in self._unshown), default=math.inf)

    def check_integrity(self) -> None:
        """Raise AssertionError if a model shows words of a leader that it lacks, or a leader is queued twice."""
        queued = [entry for _, _, entry in self._queue if not entry.gone]
        assert len(queued) == len(set(map(id, queued)))
        for key, model in self._models.items():
            assert model.shown.keys() <= model.entries.keys()
            assert all(entry.key == key and not entry.gone for entry in model.entries.values())
        assert self._unshown <= self._models.keys()
        known = {id(entry) for model in self._models.values() for entry in model.entries.values()}
        assert known >= set(map(id, queued))

    def _store(self, entry: Entry, words: str, due: float) -> None:
        if entry.gone:
            return
        if entry.words != words:
            entry.words = words
            self._unshown.add(entry.key)
        self._push(due, entry)

    def _push(self, due: float, entry: Entry) -> None:
        heapq.heappush(self._queue, (due, next(self._numbers), entry))

    def _drop(self, model: _Model, uid: str) -> None:
        model.entries.pop(uid).gone = True
        model.shown.pop(uid, None)
