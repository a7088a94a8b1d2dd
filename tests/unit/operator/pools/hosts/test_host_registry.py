"""Accepted reports of hosts: none that goes back, contradicts itself, or comes from an earlier process."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from operator_support.stub_host import MIB, StubHost

from plimsoll_operator.pools.hosts.host_registry import HostPod, HostRegistry, Known
from plimsoll_operator.pools.hosts.report import BadReportError, Report, decode_report
from plimsoll_operator.spec.identity import ObjectKey

POOL = ObjectKey("team", "shared")
NOW = 1767225600.0


def pod(uid: str = "p", memory: int = 0) -> HostPod:
    return HostPod(POOL, f"shared-{uid}", uid, "n1", "198.18.0.9", memory)


def report(**changes: Any) -> Report:
    return msgspec.structs.replace(StubHost(sequence=5).report(), **changes)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (report(sequence=4), "its sequence"),
        (report(time=NOW - 60), "its time is before"),
        (report(time=NOW + 3600), "in the future"),
        (report(device=msgspec.structs.replace(report().device, line=2000 * MIB)), "above its capacity"),
        (report(sleepers=msgspec.structs.replace(report().sleepers, used=1 << 40)), "its images"),
    ],
)
def test_a_report_that_cannot_be_true_changes_nothing(second: Report, words: str) -> None:
    told: list[str] = []
    registry = HostRegistry(lambda known, before: told.append(known.trouble))
    registry.keep(POOL, [pod()])
    registry.take("p", report(), NOW)
    registry.take("p", second, NOW)
    registry.take("p", second, NOW)
    known = registry.get("p")
    assert known is not None
    assert known.report == report()
    assert known.refused
    assert words in known.trouble
    assert told == ["", known.trouble], "told once"


def test_a_device_that_a_pool_has_not_claimed_is_not_placed_on() -> None:
    """A container runtime may show the device to every pod of a node, and another pool may have requested it."""
    gpu = report(device=msgspec.structs.replace(report().device, kind="cuda", capacity=80 << 30, line=72 << 30))
    registry = HostRegistry()
    registry.keep(POOL, [pod(memory=1024 * MIB), pod("claimed", memory=0)])
    for uid in ("p", "claimed"):
        registry.take(uid, gpu, NOW)
    refused, believed = registry.get("p"), registry.get("claimed")
    assert refused is not None
    assert believed is not None
    assert (refused.report, refused.refused) == (None, True)
    assert "an accelerator (cuda) that its pool does not request" in refused.trouble
    assert "set resources.accelerator in the RuntimePool" in refused.trouble
    assert believed.report == gpu


def test_a_pod_cannot_have_more_memory_than_its_limit() -> None:
    registry = HostRegistry()
    registry.keep(POOL, [pod(memory=1024 * MIB)])
    registry.take("p", report(), NOW)
    known = registry.get("p")
    assert known is not None
    assert known.report is None
    assert "above its pod's memory limit of" in known.trouble


def test_a_process_that_was_replaced_is_not_believed_again() -> None:
    registry = HostRegistry()
    registry.keep(POOL, [pod()])
    registry.take("p", report(), NOW)
    registry.take("p", report(instance="i2", sequence=0), NOW)
    registry.take("p", report(sequence=9), NOW)
    known = registry.get("p")
    assert known is not None
    assert known.report is not None
    assert known.report.instance == "i2"
    assert "which another process has replaced" in known.trouble


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"instance": "", "sequence": 1}',
        msgspec.json.encode(report()).replace(b'"pressure":"none"', b'"pressure":"lots"'),
        msgspec.json.encode(report()).replace(b'"capacity":1073741824', b'"capacity":-1'),
        msgspec.json.encode(report()).replace(b'"capacity":1073741824', b'"capacity":1e999'),
        msgspec.json.encode(report()).replace(b'"sequence":5', b'"sequence":"5"'),
    ],
)
def test_what_is_no_report_is_refused_with_words(data: bytes) -> None:
    with pytest.raises(BadReportError, match=r"its report is not valid: .+"):
        decode_report(data)


class Telling(RuleBasedStateMachine):
    """Pods come and go; reports and failures come in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = HostRegistry()
        self.believed: dict[str, tuple[str, int]] = {}

    @rule(uids=st.sets(st.sampled_from("abc")))
    def keep(self, uids: set[str]) -> None:
        self.registry.keep(POOL, [pod(uid) for uid in uids])
        self.believed = {uid: last for uid, last in self.believed.items() if uid in uids}

    @rule(uid=st.sampled_from("abcd"), instance=st.sampled_from(["i1", "i2"]), sequence=st.integers(0, 4))
    def take(self, uid: str, instance: str, sequence: int) -> None:
        self.registry.take(uid, report(instance=instance, sequence=sequence), NOW)
        known = self.registry.get(uid)
        if known is None or known.refused or known.report is None:
            return
        before = self.believed.get(uid)
        now = (known.report.instance, known.report.sequence)
        assert now == (instance, sequence)
        assert before is None or before[0] != now[0] or before[1] <= now[1]
        self.believed[uid] = now

    @rule(uid=st.sampled_from("abcd"))
    def fail(self, uid: str) -> None:
        self.registry.fail(uid, "it is not reachable")

    @invariant()
    def nothing_contradicts_itself(self) -> None:
        self.registry.check_integrity()
        reported = {k.pod.uid: (k.report.instance, k.report.sequence) for k in self.registry if k.report is not None}
        assert reported == self.believed


Telling.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestTelling = Telling.TestCase


def test_who_is_told_of_sees_what_was_before() -> None:
    seen: list[tuple[int | None, int]] = []

    def changed(known: Known, before: Report | None) -> None:
        assert known.report is not None
        seen.append((None if before is None else before.sequence, known.report.sequence))

    registry = HostRegistry(changed)
    registry.keep(POOL, [pod()])
    registry.take("p", report(), NOW)
    registry.take("p", report(sequence=6), NOW)
    assert seen == [(None, 5), (5, 6)]
