"""The record of served names that have served traffic, and its form in a ConfigMap."""

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
    """Why a claim is refused: the name has served traffic in another namespace.

    `until` is when the operator gives the name up; None while an object of `namespace` claims it.
    """

    namespace: str
    until: datetime | None = None


Record = Mapping[str, Kept]
"""By served name."""
EMPTY: Record = {}


def parse_record(data: Mapping[str, str]) -> dict[str, Kept]:
    """Read the data of the ConfigMap: by namespace, lines of a name, and a time if no object claims it any more.

    Lines that cannot be read are skipped; the operator removes them. A name in two namespaces belongs to the first.
    """
    record: dict[str, Kept] = {}
    for namespace in sorted(data):
        for line in data[namespace].splitlines():
            name, _, time = line.strip().partition(" ")
            if name:
                record.setdefault(name, Kept(namespace, _time(time)))
    return record


def format_record(record: Record) -> dict[str, str]:
    """The data of the ConfigMap."""
    lines: dict[str, list[str]] = {}
    for name, kept in sorted(record.items()):
        lines.setdefault(kept.namespace, []).append(format_line(name, kept))
    return {namespace: "".join(found) for namespace, found in sorted(lines.items())}


def format_line(name: str, kept: Kept) -> str:
    """One name in the data of the ConfigMap."""
    return f"{name}\n" if kept.until is None else f"{name} {kept.until.strftime(TIME_FORMAT)}\n"


def _time(text: str) -> datetime | None:
    """One that cannot be read counts as none: the name stays kept, and the operator writes another time."""
    try:
        return datetime.strptime(text.strip(), TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None


def record_store(key: ObjectKey) -> Store[Mapping[str, str]]:
    """A store of the data of the one ConfigMap that is the record."""
    return Store(Resource("ConfigMap", "/api/v1", "configmaps", _read_data, name=key.name), [key.namespace])


def _read_data(item: Object) -> Mapping[str, str]:
    return item.get("data") or {}
