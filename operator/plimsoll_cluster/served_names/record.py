"""The record of served names that have served traffic, and its format in a ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from plimsoll_cluster.keys import Object, ObjectKey
from plimsoll_cluster.resource import Resource
from plimsoll_cluster.store import Store

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Kept:
    """What the record has of a served name: it has served traffic in `namespace`, so that no other one may claim it.

    `until`: when the operator releases the name; None while an object of `namespace` claims it.
    """

    namespace: str
    until: datetime | None = None


Record = Mapping[str, Kept]
"""`Kept` by served name."""
EMPTY: Record = {}


def parse_record(data: Mapping[str, str]) -> dict[str, Kept]:
    """Parse the ConfigMap's data: by namespace, lines of a name and, if no object claims it, the time of its release.

    Unreadable lines are skipped; the operator removes them. A name listed under two namespaces belongs to the first.
    """
    record: dict[str, Kept] = {}
    for namespace in sorted(data):
        for line in data[namespace].splitlines():
            name, _, time = line.strip().partition(" ")
            if name:
                record.setdefault(name, Kept(namespace, _time(time)))
    return record


def format_record(record: Record) -> dict[str, str]:
    """Return the record as the ConfigMap's data."""
    lines: dict[str, list[str]] = {}
    for name, kept in sorted(record.items()):
        lines.setdefault(kept.namespace, []).append(format_line(name, kept))
    return {namespace: "".join(found) for namespace, found in sorted(lines.items())}


def format_line(name: str, kept: Kept) -> str:
    """Return the line of one name in the ConfigMap's data."""
    return f"{name}\n" if kept.until is None else f"{name} {kept.until.strftime(TIME_FORMAT)}\n"


def _time(text: str) -> datetime | None:
    """Parse a time. An unreadable one counts as None: the name stays reserved, and the operator writes a new time."""
    try:
        return datetime.strptime(text.strip(), TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None


def record_store(key: ObjectKey) -> Store[Mapping[str, str]]:
    """Return a store of the data of the ConfigMap that holds the record."""
    return Store(Resource("ConfigMap", "/api/v1", "configmaps", _read_data, name=key.name), [key.namespace])


def _read_data(item: Object) -> Mapping[str, str]:
    return item.get("data") or {}
