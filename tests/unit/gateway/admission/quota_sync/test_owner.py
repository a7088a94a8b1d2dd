"""Grants of an owner, step by step."""

from __future__ import annotations

import pytest

from plimsoll_gateway.admission.quota.usage import Kind
from plimsoll_gateway.admission.quota_sync.messages import Line, Report
from plimsoll_gateway.admission.quota_sync.owner import QuotaOwner, StaleReport

LIMIT = 100
INSTANCES = {"a": "a" * 32, "b": "b" * 32}


class World:
    """An owner, its members, and the number of reports each has sent."""

    def __init__(self, *members: str) -> None:
        self.members = members
        self.owner = QuotaOwner(lambda key, kind: LIMIT if (key, kind) == ("k", Kind.REQUESTS) else None, self._order)
        self.now = 1000.0
        self._numbers: dict[str, int] = {}

    def _order(self, _: str) -> tuple[str, ...]:
        return self.members

    def says(self, member: str, held: int, used: int, want: int, *, joined: bool = True, instance: str = "") -> int:
        """Send a report, and return the share that its reply grants."""
        number = self._numbers[member] = self._numbers.get(member, 0) + 1
        lines = (Line("k", Kind.REQUESTS, held, used, want),)
        report = Report(member, instance or INSTANCES[member], number, joined, lines)
        self.owner.hear(report, self.now)
        reply = self.owner.reply(report, "0" * 32, self.now)
        self.owner.check_integrity()
        (grant,) = reply.grants
        return grant.share

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.owner.tidy(self.members, self.now)


def test_what_is_called_back_is_nobodys_before_it_is_given_back() -> None:
    world = World("a", "b")
    world.says("a", 90, 0, 0)
    assert world.says("b", 10, 10, 60) == 10
    wanted_back = world.says("a", 90, 0, 0)
    assert wanted_back < 50
    assert world.says("b", 10, 10, 60) == 10, "a may still use the reclaimed amount"
    assert world.says("a", 40, 40, 40) == 40
    assert world.says("b", 10, 10, 60) == 60


def test_what_was_granted_counts_before_its_holder_says_so() -> None:
    world = World("a", "b")
    for _ in range(63):  # after that, the amount without a known holder is free
        world.says("a", 10, 10, 10)
        granted = world.says("b", 10, 10, 10)
        world.pass_time(1.0)
    assert granted == 50
    assert world.says("a", 10, 10, 90) == 50, "b has its reply, or will have"


def test_what_nobody_accounts_for_counts_as_used_for_a_minute() -> None:
    """The previous owner died, and its share may have been used until then."""
    world = World("a")
    assert world.says("a", 30, 30, 100) == 30
    for _ in range(60):
        world.pass_time(1.0)
        assert world.says("a", 30, 30, 100) == 30
    world.pass_time(2.5)
    assert world.says("a", 30, 30, 100) == 100


def test_the_share_of_one_who_is_gone_counts_as_used_for_a_minute() -> None:
    world = World("a", "b")
    world.says("a", 50, 10, 100)
    world.says("b", 50, 50, 50)
    world.members = ("a",)
    world.pass_time(1.0)
    assert world.says("a", 50, 10, 100) == 50
    for _ in range(31):  # the owner still gets its reports
        world.pass_time(2.0)
        share = world.says("a", 50, 10, 100)
    assert share == 100


def test_one_that_is_started_anew_has_nothing_that_the_old_one_may_have_used() -> None:
    world = World("a", "b")
    world.says("a", 50, 10, 100)
    world.says("b", 50, 50, 50)
    assert world.says("b", 0, 0, 50, joined=False, instance="c" * 32) == 0


def test_an_older_report_is_refused() -> None:
    world = World("a")
    world.says("a", 10, 0, 0)
    report = Report("a", INSTANCES["a"], 1, True, ())
    with pytest.raises(StaleReport, match="report 1 of a"):
        world.owner.hear(report, world.now)
