"""The harness of groups: faults among their pods, how long they hold pods, and when workers joined."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness import group_faults
from harness.group_faults import Holds, faults
from harness.groups import Member, joined_at
from harness.kube import Kube

LOG = """\
2026-11-28T19:45:33.064123456Z INFO member 0: waiting for members 1, 2
2026-11-28T19:45:34.500000000Z INFO member 0: member 2 (a) has joined from 10.0.0.2:1
2026-11-28T19:45:35.250000000Z INFO member 0: member 1 (b) has joined from 10.0.0.3:1
2026-11-28T19:45:36.064123456Z INFO member 0: generation 1 of the ranks starts
"""


def member(group: str, index: int, digest: str = "new", *, ready: bool = True, stopping: bool = False) -> Member:
    return Member(f"{group}-{index}", "", group, index, digest, "n1", "10.0.0.1", ready, stopping)


def test_whole_groups_have_no_faults() -> None:
    assert faults([]) == []
    assert faults([member("0", 0), member("0", 1), member("1", 0, "old"), member("1", 1, "old")]) == []


def test_terminating_pods_are_no_faults() -> None:
    replaced = member("0", 1, "old", stopping=True)
    assert faults([member("0", 0), replaced, member("0", 1)]) == []


def test_a_member_that_exists_twice_is_a_fault() -> None:
    assert faults([member("0", 0), member("0", 1), member("0", 1)]) == ["group 0 has 2 pods of index 1"]


def test_a_group_of_two_hashes_is_a_fault() -> None:
    assert faults([member("3", 0, "new"), member("3", 1, "old")]) == ["group 3 has pods of the hashes new, old"]


def test_groups_hold_pods_until_they_are_ready_or_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    pods: dict[str, Sequence[Member]] = {}
    monkeypatch.setattr(group_faults, "live", lambda _, name: pods[name])
    waiting, ready = member("0", 0, ready=False), member("0", 0)
    holds = Holds(Kube.__new__(Kube), ["model"], 2, lambda: now[0])
    for seconds, found in ((0, [waiting]), (5, [waiting, ready]), (9, []), (20, [waiting]), (23, [ready, ready])):
        now[0], pods["model"] = 100.0 + seconds, found
        holds.look()
    assert holds.longest == {"model": 5.0}


def test_the_last_join_is_read_from_the_log() -> None:
    assert joined_at(LOG) - joined_at(LOG.replace("19:45:35.25", "19:45:35.00")) == pytest.approx(0.25)
