"""Keeps the record of served names: a name that has served traffic stays with its namespace for a grace period.

The record is one ConfigMap. Gateways and operator both follow what it contains, so nothing has to be written when an
object is deleted, and a restarted operator decides as before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from plimsoll_cluster.resource import Entry, version_of
from plimsoll_cluster.served_names.record import EMPTY, Kept, Record, format_line, format_record, parse_record
from plimsoll_cluster.store import Change
from plimsoll_operator.kube.api import ApiError
from plimsoll_operator.kube.context import ReconcileContext
from plimsoll_operator.kube.plan_executor import NotLeaderError
from plimsoll_operator.kube.served_names import NameRegistry
from plimsoll_operator.metrics import UNRECORDED
from plimsoll_operator.spec.identity import Object, ObjectKey
from plimsoll_operator.spec.model_deployment import served_names

logger = logging.getLogger(__name__)

MOST_NAMES = 20_000
MOST_BYTES = 900_000
"""The most names, and bytes, of the record: a ConfigMap may have 1 MiB."""
PAUSE_SECONDS = 2.0
"""Seconds between two writes, which combine all changes in between."""
RETRY_SECONDS = 5.0


class NameRecorder:
    """Writes the record, and passes the stored record to the registry of names."""

    def __init__(
        self, context: ReconcileContext, key: ObjectKey, grace: timedelta, wake: Callable[[ObjectKey], None]
    ) -> None:
        """Follow the record `key` in the stores. `grace`: how long a name stays with its namespace without an object.

        Calls `wake` with objects whose names may change with the record.
        """
        store = context.stores.name_record
        assert store is not None
        self._store = store
        self._context = context
        self._key = key
        self._grace = grace
        self._wake = wake
        self._due = asyncio.Event()
        self._written = 0
        self._said = ""
        store.listen(self._record_changed)
        context.stores.models.listen(self._models_changed)

    async def run(self) -> None:
        """Keep the record up to date forever. Raise NotLeaderError."""
        await self._context.stores.wait_synced()
        while True:
            self._due.clear()
            seconds = await self.write()
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                async with asyncio.timeout(seconds):
                    await self._due.wait()
            except TimeoutError:
                pass

    async def write(self) -> float | None:
        """Write the record if it has changed. Return the seconds until the next write is due: until a name expires, or
        until a failed write is tried again; None if only a change makes one due.

        Raise NotLeaderError.
        """
        entry = self._store.get(self._key)
        if entry is None:
            self._say(f"the ConfigMap {self._key} is missing, so no name is kept: run `helm upgrade` to create it")
            return None
        if entry.version < self._written:
            return None  # The store does not show our last write yet.
        now, names, stored = self._context.clock(), self._context.names, parse_record(entry.value)
        served = serving(self._context.stores.models, names)
        record, left_out = fit_record(plan_record(stored, names, served, now, self._grace), stored)
        UNRECORDED.set(left_out)
        trouble = f"the ConfigMap {self._key} is full: {left_out} served names are not kept" if left_out else ""
        if change := _difference(entry.value, format_record(record)):
            if not self._context.may_act():
                raise NotLeaderError("the Lease is lost")
            try:
                self._written = version_of(await self._context.api.change_config_map(self._key, entry.version, change))
            except ApiError as error:
                self._say(f"cannot write the ConfigMap {self._key}, trying again: {error}")
                return RETRY_SECONDS
        self._say(trouble)
        ends = [kept.until for kept in record.values() if kept.until is not None]
        return max(0.0, (min(ends) - now).total_seconds()) if ends else None

    def _models_changed(self, changes: Sequence[Change[Object]]) -> None:
        if any(_names_of(change.before) != _names_of(change.after) for change in changes):
            self._due.set()

    def _record_changed(self, changes: Sequence[Change[Mapping[str, str]]]) -> None:
        for change in changes:
            record = EMPTY if change.after is None else parse_record(change.after.value)
            for key in self._context.names.use_record(record):
                self._wake(key)
        self._due.set()

    def _say(self, news: str) -> None:
        """Log a problem once, not each time it is found again; "" means that there is none."""
        if news and news != self._said:
            logger.warning("%s", news)
        self._said = news


def serving(models: Iterable[Entry[Object]], names: NameRegistry) -> dict[str, str]:
    """Return served name -> namespace, of the names under which a ready replica of their owner gets requests."""
    return {
        name: model.key.namespace for model in models for name in _ready_names(model) if names.owner(name) == model.key
    }


def plan_record(
    record: Record, names: NameRegistry, serving: Mapping[str, str], now: datetime, grace: timedelta
) -> dict[str, Kept]:
    """Return the wanted record: adds names that serve, keeps unclaimed names for `grace`, and removes names that a rule
    reserves for other namespaces.
    """
    planned = {}
    for name, kept in record.items():
        if names.policy.rules.refusal(name, kept.namespace) is not None:
            continue
        if names.is_claimed(name, kept.namespace):
            planned[name] = Kept(kept.namespace)
            continue
        until = min(kept.until or now + grace, now + grace)
        if until > now:
            planned[name] = Kept(kept.namespace, until.replace(microsecond=0))
    for name, namespace in serving.items():
        planned.setdefault(name, Kept(namespace))
    return planned


def fit_record(
    wanted: Record, before: Record, most_names: int = MOST_NAMES, most_bytes: int = MOST_BYTES
) -> tuple[dict[str, Kept], int]:
    """Return as much of a record as fits, and the number of names that do not.

    Claimed names take precedence, and among them those already in the record. Of the others, those that expire first
    are left out first, starting with the namespace that has most of them, so that no namespace displaces the names of
    another.
    """
    claimed = sorted(name for name, kept in wanted.items() if kept.until is None)
    waiting = sorted(((kept.until, name) for name, kept in wanted.items() if kept.until is not None), reverse=True)
    order: list[tuple[int, int, str]] = [(0, name not in before, name) for name in claimed]
    count: Counter[str] = Counter()
    for _, name in waiting:
        namespace = wanted[name].namespace
        count[namespace] += 1
        order.append((1, count[namespace], name))
    fitting: dict[str, Kept] = {}
    size, seen = 0, set[str]()
    for _, _, name in sorted(order):
        kept = wanted[name]
        size += len(format_line(name, kept)) + (0 if kept.namespace in seen else len(kept.namespace))
        seen.add(kept.namespace)
        if len(fitting) == most_names or size > most_bytes:
            break
        fitting[name] = kept
    return fitting, len(wanted) - len(fitting)


def _names_of(entry: Entry[Object] | None) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that an object claims, and those that its status lists while it has a ready replica."""
    if entry is None:
        return frozenset(), frozenset()
    return frozenset(served_names(entry.value)), frozenset(_ready_names(entry))


def _ready_names(entry: Entry[Object]) -> Sequence[str]:
    status = entry.value.get("status") or {}
    return (status.get("servedNames") or ()) if status.get("readyReplicas") and not entry.deleting else ()


def _difference(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the merge patch that turns the data `before` into `after`; empty if they are equal."""
    return {key: after.get(key) for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)}
