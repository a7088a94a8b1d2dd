"""Requests counted since a canary entered its present state of its step (starting or observing): the growth of each
gateway process's totals.

The counts are only in memory. After a change of the leader they start at zero, so the step lasts until enough requests
have been counted again. The first report of a gateway in the state is the baseline and counts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.canary.counts import NOTHING, RequestCounts
from plimsoll_operator.canary.state import Canary

Totals = Mapping[str, Mapping[str, RequestCounts]]
"""The counts of each gateway process since it started, by revision."""


@dataclass(slots=True)
class Account:
    """`last`: the latest totals of each gateway process, by revision. `sums`: by how much the totals of all
    processes together have grown since the canary's state began, by revision. `of`: the canary's revision, its step,
    and its state with the time when it began.
    """

    of: tuple[str, int, str]
    last: dict[str, dict[str, RequestCounts]] = field(default_factory=dict)
    sums: dict[str, RequestCounts] = field(default_factory=dict)


class Evidence:
    """The request counts of all models with a canary, each since the canary's state began."""

    def __init__(self) -> None:
        self._accounts: dict[ObjectKey, Account] = {}

    def since(self, key: ObjectKey, canary: Canary, totals: Totals) -> tuple[RequestCounts, RequestCounts]:
        """Return two counts since the canary's state began: of its revision, and of all other revisions together."""
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
        """Discard the counts of a model that no longer has a canary."""
        self._accounts.pop(key, None)

    def check_integrity(self) -> None:
        """Raise AssertionError if a sum contradicts itself."""
        for account in self._accounts.values():
            for seen in account.sums.values():
                _whole(seen).check_integrity()


def _whole(seen: RequestCounts) -> RequestCounts:
    """Return the counts with `requests` raised to `failed` if that is higher. A response may begin before the canary's
    state and break off in it: then only its failure counts for the state.
    """
    return replace(seen, requests=max(seen.requests, seen.failed))


def _count(account: Account, instance: str, found: Mapping[str, RequestCounts]) -> None:
    before = account.last.get(instance)
    account.last[instance] = dict(found)
    if before is None:
        return
    for revision, seen in found.items():
        earlier = before.get(revision, NOTHING)
        grown = seen - earlier
        if seen == earlier or min(grown.requests, grown.failed, grown.timed) < 0:
            continue  # A total that fell belongs to another process: the difference means nothing.
        account.sums[revision] = account.sums.get(revision, NOTHING) + grown
