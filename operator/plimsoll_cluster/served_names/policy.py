"""Decides which namespace may use a served name, from the rules and the record of names that have served traffic.

Operator and gateways decide with `NamePolicy` alone, so that they agree. It reads no clock: an entry of the record is
valid until the operator removes it.
"""

from __future__ import annotations

from plimsoll_cluster.served_names.record import EMPTY, Kept, Record
from plimsoll_cluster.served_names.rules import NO_RULES, NameRules, Reserved


class NamePolicy:
    """The rules, and the stored record. A rule takes precedence over the record."""

    def __init__(self, rules: NameRules = NO_RULES, record: Record = EMPTY) -> None:
        self.rules = rules
        self.record = record

    def refusal(self, name: str, namespace: str) -> Reserved | Kept | None:
        """Return why objects of a namespace may not use a name; None if rules and record allow it."""
        if (reserved := self.rules.refusal(name, namespace)) is not None:
            return reserved
        kept = self.record.get(name)
        if kept is None or kept.namespace == namespace or self.rules.refusal(name, kept.namespace) is not None:
            return None
        return kept

    def with_record(self, record: Record) -> tuple[NamePolicy, set[str]]:
        """Return the policy with another record, and the names for which the two records differ."""
        names = self.record.keys() | record.keys()
        return NamePolicy(self.rules, record), {name for name in names if self.record.get(name) != record.get(name)}


FREE = NamePolicy()
"""No rules and no record: the oldest ModelDeployment that claims a name has it."""
