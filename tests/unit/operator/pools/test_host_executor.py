"""The requests that hosts get for a plan, one action after the other, and rejections."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from operator_support.objects import EPOCH, model
from operator_support.stub_host import StubClient, StubHost, StubModel
from prometheus_client import REGISTRY

from plimsoll_operator.placement.records.action import Action, ActionCause, First, Move, Place, Sleep, Unload
from plimsoll_operator.placement.records.level import Level
from plimsoll_operator.pools.host_executor import HostExecutor
from plimsoll_operator.pools.host_model_spec import HostModelSpec, host_model_spec
from plimsoll_operator.pools.hosts.client import HostClient, HostError
from plimsoll_operator.pools.hosts.host_registry import HostPod, HostRegistry, Known
from plimsoll_operator.pools.placer_state import PlacerState, Refused
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.spec.model_deployment import read_spec
from plimsoll_operator.status.reasons import Reason

POOL = ObjectKey("team", "shared")
POD = HostPod(POOL, "h", "uid-h", "n", "198.18.0.9", 0)
A, B, C = (ObjectKey("team", name) for name in "abc")


@dataclass
class Host(StubHost):
    """Records its requests, and rejects as specified; like real hosts, it has a model only once."""

    asked: list[tuple[str, str]] = field(default_factory=list)

    def change(self, verb: str, key: ObjectKey, body: Mapping[str, Any]) -> tuple[int, Any]:
        self.asked.append((verb, key.name))
        if verb in self.refusals:
            raise HostError(409, f"it answered 409: {self.refusals[verb]}")
        if verb == "place":
            theirs = {name for other, found in self.models.items() if other != key for name in names_of(found)}
            taken = theirs & set(body["spec"]["servedNames"])
            if taken:
                raise HostError(409, f"it answered 409: {taken} is taken")
        return super().change(verb, key, body)


def names_of(found: StubModel) -> Sequence[str]:
    names: Sequence[str] = found.spec["servedNames"]
    return names


def spec(key: ObjectKey, *names: str) -> HostModelSpec:
    return host_model_spec(read_spec(model(key.name, placement={"pool": "shared"})), list(names))


def known(host: StubHost) -> Known:
    registry = HostRegistry()
    registry.keep(POOL, [POD])
    registry.take(POD.uid, host.report(), host.now)
    (found,) = registry
    return found


class Asking:
    """The executor for one host, and the events that it caused."""

    def __init__(self, host: Host) -> None:
        self.host, self.pool = host, PlacerState()
        self.told: list[tuple[ObjectKey, Reason]] = []
        self.executor = HostExecutor(self.connect, self.tell, may_act=lambda: True, clock=lambda: EPOCH)

    def connect(self, _: HostPod) -> HostClient:
        return StubClient(self.host)

    def tell(self, key: ObjectKey, reason: Reason, _: str) -> None:
        self.told.append((key, reason))

    def carry_out(self, specs: Mapping[ObjectKey, HostModelSpec], *actions: Action) -> list[tuple[str, str]]:
        """Execute actions, and return the requests that the host got."""
        self.host.asked.clear()
        asyncio.run(self.executor.carry_out(self.pool, [known(self.host)], actions, specs))
        return list(self.host.asked)


def renewed(key: ObjectKey) -> Move:
    return Move(key, POD.key, ActionCause.REVISION, "its spec changed", POD.key, Level.RESIDENT, First.UNLOAD)


def held(host: Host, key: ObjectKey, *names: str) -> None:
    host.models[key] = StubModel({**spec(key, *names).body, "revision": "before"}, "Resident", host.now)


def test_a_name_that_goes_from_one_model_to_another_of_a_host_does() -> None:
    host = Host()
    held(host, A, "a", "x")
    held(host, B, "b")
    asking = Asking(host)
    specs = {A: spec(A, "a"), B: spec(B, "b", "x")}
    assert asking.carry_out(specs, renewed(B), renewed(A)) == [("place", "b"), ("place", "a")]
    assert (B, Reason.REFUSED) in asking.told
    assert asking.carry_out(specs, renewed(B)) == [], "it is not asked again at once"
    asking.pool.refused.clear()
    assert asking.carry_out(specs, renewed(B)) == [("place", "b")]
    assert set(names_of(host.models[B])) == {"b", "x"}


@pytest.mark.parametrize("remembered", [True, False])
def test_what_counts_on_room_that_was_refused_is_not_asked(remembered: bool) -> None:
    host = Host(refusals={"sleep": "it answers"})
    held(host, A, "a")
    held(host, B, "b")
    asking = Asking(host)
    if remembered:
        asking.pool.refused[POD.uid, A] = Refused("", EPOCH.timestamp() + 30, "it answers")
    sleep = Sleep(A, POD.key, ActionCause.EVICTED, "", Level.IN_HOST)
    place = Place(C, POD.key, ActionCause.MISSING, "", Level.RESIDENT)
    found = asking.carry_out({C: spec(C, "c")}, sleep, place)
    assert found == ([] if remembered else [("sleep", "a")])


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_decisions_are_counted_by_action_and_reason() -> None:
    accepted = {"action": "sleep", "reason": "Evicted"}
    refused = {"action": "place", "outcome": "refused"}
    evicted = {"namespace": A.namespace, "model": A.name}
    names = "plimsoll_operator_placement_actions_total", "plimsoll_operator_evictions_total"
    failures = "plimsoll_operator_placement_failures_total"
    before = counted(names[0], **accepted), counted(names[1], **evicted), counted(failures, **refused)
    host = Host(refusals={"place": "it is full"})
    held(host, A, "a")
    asking = Asking(host)
    sleep = Sleep(A, POD.key, ActionCause.EVICTED, "", Level.IN_HOST)
    place = Place(C, POD.key, ActionCause.MISSING, "", Level.RESIDENT)
    asking.carry_out({C: spec(C, "c")}, sleep)
    asking.carry_out({C: spec(C, "c")}, place)
    after = counted(names[0], **accepted), counted(names[1], **evicted), counted(failures, **refused)
    assert after == tuple(value + 1 for value in before)


def test_nothing_more_is_asked_of_a_host_that_does_not_answer() -> None:
    host = Host()
    asking = Asking(host)
    found = known(host)
    host.dead = True
    place = [Place(key, POD.key, ActionCause.MISSING, "", Level.RESIDENT) for key in (A, B)]
    specs = {key: spec(key, key.name) for key in (A, B)}
    asyncio.run(asking.executor.carry_out(asking.pool, [found], place, specs))
    assert host.asked == [("place", "a")]
    assert asking.told == []


def test_a_model_that_goes_is_asked_to() -> None:
    host = Host()
    held(host, A, "a")
    assert Asking(host).carry_out({}, Unload(A, POD.key, ActionCause.REMOVED, "")) == [("remove", "a")]


@pytest.mark.parametrize("first", First)
@pytest.mark.parametrize("source", [POD.key, ObjectKey("team", "elsewhere")])
def test_a_model_whose_spec_cannot_be_read_is_not_moved_and_nobody_is_told_that_it_was(
    first: First, source: ObjectKey
) -> None:
    host = Host()
    held(host, A, "a")
    asking = Asking(host)
    move = Move(A, POD.key, ActionCause.DRAINING, "", source, Level.RESIDENT, first)
    assert asking.carry_out({}, move) == []
    away = Move(A, ObjectKey("team", "elsewhere"), ActionCause.DRAINING, "", POD.key, Level.RESIDENT, first)
    assert asking.carry_out({}, away) == [], "taken away, it could be placed nowhere"
    assert (asking.told, asking.pool.moved, asking.pool.asked) == ([], {}, {})
