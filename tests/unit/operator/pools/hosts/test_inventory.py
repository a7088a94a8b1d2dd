"""Hosts for the planner: accepted actions count until the report shows them, and dead pods do not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from operator_support.objects import EPOCH
from operator_support.stub_host import MIB, StubHost
from operator_support.world import SimulatedPod, State

from plimsoll_operator.placement.records.level import Condition
from plimsoll_operator.placement.records.level import State as Level
from plimsoll_operator.planning.nodes import Node
from plimsoll_operator.planning.pods import Pod, observe_pods, read_pod
from plimsoll_operator.pools.hosts.host_registry import HostPod, Known
from plimsoll_operator.pools.hosts.inventory import PATIENCE_SECONDS, Asked, host_of
from plimsoll_operator.pools.hosts.model_host import host_status, says_the_same
from plimsoll_operator.pools.hosts.report import Needs
from plimsoll_operator.spec.identity import ObjectKey

MODEL = ObjectKey("team", "m")
NOW = EPOCH.timestamp()


def pod(state: State = State.READY, **nodes: Node) -> Pod:
    (found,) = observe_pods([read_pod(SimulatedPod("h", "x", state, EPOCH).json())], EPOCH, nodes)
    return found


def known(*models: str, reserved: int = 0) -> Known:
    host = StubHost(now=NOW, reserved=reserved)
    for name in models:
        spec = {"revision": "r1", "servedNames": [name], "pinned": False, "weight": 1.0, "priority": 0}
        host.change("place", ObjectKey("team", name), {"operation": name, "spec": spec, "level": "Resident"})
    found = Known(HostPod(ObjectKey("team", "shared"), "h", "uid-h", "n1", "198.18.0.9", 0), host.report())
    assert found.report is not None
    found.entries = {entry.key: entry for entry in found.report.models}
    return found


def asked(**changes: Any) -> Asked:
    fields = {"instance": "i1", "sequence": 0, "revision": "r1", "going": False, "since": NOW}
    return Asked(**{**fields, **changes})


def test_what_was_asked_for_is_on_its_way_until_the_report_shows_it() -> None:
    found = known()
    change = asked()
    assert change.is_open(found.report, None, NOW)
    host = host_of(pod(), found, {}, {MODEL: change}, draining=False)
    assert host is not None
    assert [(copy.model, copy.state, copy.revision) for copy in host.models] == [(MODEL, Level.FETCHING, "r1")]
    after = known("m")
    assert not change.is_open(after.report, after.entries[MODEL], NOW)


def test_what_is_to_go_is_going_until_it_is_gone() -> None:
    found, change = known("m"), asked(going=True)
    assert change.is_open(found.report, found.entries[MODEL], NOW)
    host = host_of(pod(), found, {}, {MODEL: change}, draining=False)
    assert host is not None
    assert [copy.going for copy in host.models] == [True]
    assert not change.is_open(known().report, None, NOW)


def test_another_process_was_asked_nothing_and_patience_ends() -> None:
    found = known()
    assert not asked(instance="i0").is_open(found.report, None, NOW)
    assert not asked().is_open(found.report, None, NOW + PATIENCE_SECONDS + 1)


@pytest.mark.parametrize(
    ("state", "nodes", "trouble", "draining", "condition"),
    [
        (State.READY, {}, "", False, Condition.READY),
        (State.READY, {}, "it is not reachable", False, Condition.CORDONED),
        (State.LOADING, {}, "", False, Condition.CORDONED),
        (State.READY, {}, "", True, Condition.DRAINING),
        (State.READY, {"n1": Node(cordoned=True, lost=False)}, "", False, Condition.DRAINING),
        (State.CUT_OFF, {}, "", False, Condition.LOST),
        (State.LOADING, {"n1": Node(cordoned=False, lost=True)}, "", False, Condition.LOST),
        (State.DEAD, {}, "", False, Condition.LOST),
    ],
)
def test_what_may_be_done_with_a_host(
    state: State, nodes: dict[str, Node], trouble: str, draining: bool, condition: Condition
) -> None:
    found = known("m")
    found.trouble = trouble
    host = host_of(pod(state, **nodes), found, {}, {}, draining=draining)
    assert host is not None
    assert host.condition is condition


def test_a_host_that_was_not_heard_of_yet_is_as_its_modelhost_says() -> None:
    before = known("m", reserved=30 * MIB)
    stored = host_status(before, False, {}, EPOCH, lambda model: True)
    silent = Known(before.pod)
    host = host_of(pod(), silent, stored, {}, draining=False)
    heard = host_of(pod(), before, {}, {}, draining=False)
    assert host is not None
    assert heard is not None
    assert [(c.model, c.revision, c.state) for c in host.models] == [
        (c.model, c.revision, c.state) for c in heard.models
    ]
    assert (host.capacity, host.line, host.reserved) == (heard.capacity, heard.line, 30 * MIB)
    assert heard.reserved == 30 * MIB
    assert sum(copy.weights for copy in host.models) == 100 * MIB
    assert host_of(pod(), silent, {}, {}, draining=False) is None


def test_what_is_known_of_a_model_is_the_same_by_report_and_by_modelhost() -> None:
    found = known("m")
    (entry,) = found.entries.values()
    needs = Needs(70 * MIB, 20 * MIB, 5 * MIB, 80 * MIB)
    sizes = {"weights": 70 * MIB, "workspace": 20 * MIB, "kv": 10 * MIB, "needs": needs}
    used = msgspec.structs.replace(entry, **sizes, rate=0.5, last_used=NOW - 60, load_seconds=12.5, wake_seconds=0.25)
    found.entries = {entry.key: used}
    assert found.report is not None
    found.report = msgspec.structs.replace(found.report, models=(used,))
    stored = host_status(found, False, {}, EPOCH, lambda model: True)
    silent = host_of(pod(), Known(found.pod), stored, {}, draining=False)
    heard = host_of(pod(), found, {}, {}, draining=False)
    assert silent is not None
    assert heard is not None
    assert silent.models == heard.models
    assert silent.time == heard.time


def test_that_a_model_was_used_for_the_first_time_is_news_and_that_it_was_again_is_not() -> None:
    def told(last_used: float | None) -> dict[str, Any]:
        found = known("m")
        assert found.report is not None
        models = tuple(msgspec.structs.replace(entry, last_used=last_used) for entry in found.report.models)
        found.report = msgspec.structs.replace(found.report, models=models)
        return host_status(found, False, {}, EPOCH, lambda model: True)

    assert not says_the_same(told(NOW), told(None))
    assert says_the_same(told(NOW + 5), told(NOW))


def test_times_of_a_status_are_those_of_the_report() -> None:
    (entry,) = host_status(known("m"), False, {}, EPOCH + timedelta(hours=1), lambda model: True)["models"]
    assert entry["since"] == "2026-01-01T00:00:00Z"
