"""What gateways saw of a model since its canary's step began: differences of totals, gateway process by process.

It is in memory alone. A process that takes over begins to count anew, so that a step then lasts until enough requests
were seen again. What a gateway said before the step, or before it was heard for the first time, counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.canary.counts import NOTHING, RequestCounts
from plimsoll_operator.canary.state import Canary

Totals = Mapping[str, Mapping[str, RequestCounts]]
"""What each gateway process has counted since it began, by revision."""


@dataclass(slots=True)
class Account:
    """Of one step: what was counted last, and the sums since it began, by revision."""

    of: tuple[str, int, str]
    last: dict[str, dict[str, RequestCounts]] = field(default_factory=dict)
    sums: dict[str, RequestCounts] = field(default_factory=dict)


class Evidence:
    """Of every model with a canary."""

    def __init__(self) -> None:
        self._accounts: dict[ObjectKey, Account] = {}

    def since(self, key: ObjectKey, canary: Canary, totals: Totals) -> tuple[RequestCounts, RequestCounts]:
        """What was seen of the canary and of all other pods since its state began."""
        of = (canary.revision, canary.step, f"{canary.state}@{canary.since.isoformat()}")
        account = self._accounts.get(key)
        if account is None or account.of != of:
            account = self._accounts[key] = Account(of, {name: dict(found) for name, found in totals.items()})
        for instance, found in totals.items():
            _count(account, instance, found)
        stable = NOTHING
        for revision, seen in account.sums.items():
            if revision != canary.revision:
                stable = stable + seen
        return _whole(account.sums.get(canary.revision, NOTHING)), _whole(stable)

    def forget(self, key: ObjectKey) -> None:
        """There is no canary any more."""
        self._accounts.pop(key, None)

    def check_integrity(self) -> None:
        """Raise AssertionError where a sum contradicts itself."""
        for account in self._accounts.values():
            for seen in account.sums.values():
                _whole(seen).check_integrity()


def _whole(seen: RequestCounts) -> RequestCounts:
    """An answer may begin before the step and break off in it: it then is one of its requests."""
    return replace(seen, requests=max(seen.requests, seen.failed))


def _count(account: Account, instance: str, found: Mapping[str, RequestCounts]) -> None:
    before = account.last.get(instance)
    account.last[instance] = dict(found)
    if before is None:
        return
    for revision, seen in found.items():
        earlier = before.get(revision, NOTHING)
        if (
            seen == earlier
            or seen.requests < earlier.requests
            or seen.failed < earlier.failed
            or seen.timed < earlier.timed
        ):
            continue  # totals never fall: it is no difference that could be counted
        account.sums[revision] = account.sums.get(revision, NOTHING) + (seen - earlier)
