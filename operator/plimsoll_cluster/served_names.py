"""Which namespace may have which served name: the installation's rules, and the record of names that have served.

Operator and gateways decide with `NamePolicy` alone, so that they agree. It reads no clock: what the record says holds
until the operator removes it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from plimsoll_cluster.keys import Object, ObjectKey
from plimsoll_cluster.resource import Resource
from plimsoll_cluster.store import Store

NAME_PATTERN = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}\*?")
NAMESPACE_PATTERN = re.compile(r"\*|[a-z0-9][-a-z0-9]{0,62}\*?")
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Rule:
    """Reserves names for namespaces. Each of both is exact, or a prefix that ends in `*`; no namespace means none."""

    names: tuple[str, ...]
    namespaces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reserved:
    """Why a claim is refused: the pattern of a rule reserves the name for other namespaces."""

    pattern: str
    namespaces: tuple[str, ...]


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


class NameRules:
    """The rules of an installation. Of several patterns that match a name, the most specific decides: an exact name,
    then the longest prefix. Rules with the same pattern add up."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._reserved: dict[str, tuple[str, ...]] = {}
        for rule in rules:
            for pattern in rule.names:
                before = self._reserved.get(pattern, ())
                self._reserved[pattern] = tuple(dict.fromkeys((*before, *rule.namespaces)))
        lengths = {len(pattern) - 1 for pattern in self._reserved if pattern.endswith("*")}
        self._lengths = sorted(lengths, reverse=True)

    def refusal(self, name: str, namespace: str) -> Reserved | None:
        """Why a namespace may not claim a name; None if it may."""
        pattern = self._deciding(name)
        if pattern is None or any(_matches(one, namespace) for one in self._reserved[pattern]):
            return None
        return Reserved(pattern, self._reserved[pattern])

    def _deciding(self, name: str) -> str | None:
        if name in self._reserved:
            return name
        prefixes = (f"{name[:length]}*" for length in self._lengths if length <= len(name))
        return next((pattern for pattern in prefixes if pattern in self._reserved), None)


NO_RULES = NameRules()


class NamePolicy:
    """The rules, and the record as it is stored now. A rule wins over the record."""

    def __init__(self, rules: NameRules = NO_RULES, record: Record = EMPTY) -> None:
        self.rules = rules
        self.record = record

    def refusal(self, name: str, namespace: str) -> Reserved | Kept | None:
        """Why objects of a namespace cannot have a name; None if the oldest of them may."""
        if (reserved := self.rules.refusal(name, namespace)) is not None:
            return reserved
        kept = self.record.get(name)
        if kept is None or kept.namespace == namespace or self.rules.refusal(name, kept.namespace) is not None:
            return None
        return kept

    def with_record(self, record: Record) -> tuple[NamePolicy, set[str]]:
        """The policy by another record, and the names about which the two differ."""
        names = self.record.keys() | record.keys()
        return NamePolicy(self.rules, record), {name for name in names if self.record.get(name) != record.get(name)}


FREE = NamePolicy()
"""Without rules and record: whoever claims a name first has it."""


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


def _matches(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def add_name_options(parser: argparse.ArgumentParser) -> None:
    """The options of operator and gateway: `name_rules` and `name_record` of what is parsed."""
    parser.add_argument(
        "--name-rule",
        type=read_rule,
        action="append",
        default=[],
        dest="name_rules",
        metavar="NAMES=NAMESPACES",
        help="reserve served names for namespaces, both comma separated, each exact or a prefix that ends in *; of "
        "several that match a name the most specific decides (repeatable; default: the oldest claim has a name)",
    )
    parser.add_argument(
        "--name-record",
        type=read_place,
        metavar="NAMESPACE/NAME",
        help="the ConfigMap in which the operator records names that have served traffic; another namespace cannot "
        "claim those (default: none)",
    )


def read_rule(text: str) -> Rule:
    """`NAMES=NAMESPACES`. Raises ArgumentTypeError."""
    names, equals, namespaces = text.partition("=")
    rule = Rule(tuple(names.split(",")), tuple(namespaces.split(",")) if namespaces else ())
    if not equals:
        raise argparse.ArgumentTypeError(f"{text[:256]!r} has no =: write NAMES=NAMESPACES, as in chat,llama-*=team-a")
    for what, pattern, values in (
        ("a served name", NAME_PATTERN, rule.names),
        ("a namespace", NAMESPACE_PATTERN, rule.namespaces),
    ):
        if (wrong := next((value for value in values if pattern.fullmatch(value) is None), None)) is not None:
            raise argparse.ArgumentTypeError(f"{wrong[:256]!r} is not {what}, nor a prefix of one that ends in *")
    return rule


def read_place(text: str) -> ObjectKey:
    """`NAMESPACE/NAME`. Raises ArgumentTypeError."""
    found = re.fullmatch(r"([a-z0-9][-a-z0-9]*)/([a-z0-9][-.a-z0-9]*)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text[:256]!r} is not NAMESPACE/NAME of a ConfigMap")
    return ObjectKey(found[1], found[2])
