"""Models and gateways over time: invariants during any events, and the result in the end."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from operator_support.objects import EPOCH
from operator_support.stub_gateway import StubGateway

from plimsoll_operator.planning.pods import Pod
from plimsoll_operator.planning.units import units_of
from plimsoll_operator.scaling.demand import Demand, ModelDemand
from plimsoll_operator.scaling.gateways import GatewayRegistry
from plimsoll_operator.scaling.history import ScalingStatus, read_scaling_status, write_scaling_status
from plimsoll_operator.scaling.poller import GatewayError
from plimsoll_operator.scaling.scaler import Decision, Scaler
from plimsoll_operator.scaling.status import news, scaling_fields
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.spec.scaling import Scaling, Target

KEY = ObjectKey("team", "m")
TICK = 5.0
CRD = yaml.safe_load((Path(__file__).parents[4] / "crds/modeldeployments.yaml").read_text())
STATUS = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
SCALING = STATUS["properties"]["scaling"]
ADDRESSES = ("198.18.0.1", "198.18.0.2")


class World:
    """Gateways, one model, its pods and its status; operator processes come and go. A step is one second."""

    def __init__(self, scaling: Scaling, start: float = 20.0, startup: float = 3600.0) -> None:
        self.scaling, self.start, self.startup, self.now = scaling, start, startup, 0.0
        self.revision = "h"
        self.gateways = {a: StubGateway(f"g-{a}", now=lambda: self.time) for a in ADDRESSES}
        self.status: dict[str, Any] = {}
        self.pods: dict[str, float] = {}
        self.removed: list[tuple[float, float]] = []
        self.events: list[tuple[float, str, str]] = []
        self.decisions: list[tuple[float, int]] = []
        self.woken = False
        self._made = 0
        self.begin()

    @property
    def time(self) -> float:
        return EPOCH.timestamp() + self.now

    @property
    def desired(self) -> int:
        found: int = self.status["desiredReplicas"]
        return found

    @property
    def ready(self) -> int:
        return sum(self.now - made >= self.start for made in self.pods.values())

    def begin(self) -> None:
        """Start a process, with the model's status."""
        self.began = self.now
        clock = lambda: datetime.fromtimestamp(self.time, UTC)  # noqa: E731
        self.scaler = Scaler(wake=lambda key: setattr(self, "woken", True), clock=clock)
        self.poll()
        self.look()

    def poll(self) -> None:
        """Poll every gateway once."""
        registry = self.scaler.registry
        registry.keep(ADDRESSES, self.time)
        for address, gateway in self.gateways.items():
            gateway.of(KEY).replicas = self.ready
            try:
                registry.take(address, gateway.answer(), self.time)
            except GatewayError as error:
                registry.fail(address, str(error))
        self.scaler.check_integrity()

    def look(self) -> None:
        """Reconcile: decide, write the status, create and delete pods."""
        pods = [pod(name, made, self.start, self.now, self.revision) for name, made in self.pods.items()]
        decision = self.scaler.decide(
            KEY, self.scaling, self.status, units_of(pods), revision=self.revision, startup=self.startup
        )
        self.note(decision)
        self.status = {"desiredReplicas": decision.replicas, **scaling_fields(decision)}
        self.decisions.append((self.now, decision.replicas))
        while len(self.pods) < decision.replicas:
            self._made += 1
            self.pods[f"p{self._made}"] = self.now
        while len(self.pods) > decision.replicas:
            _, made = self.pods.popitem()
            if not decision.replicas:
                self.removed.append((self.now, made))
        self.woken = False

    def note(self, decision: Decision) -> None:
        told = news(decision)
        if told is not None:
            self.events.append((self.now, told[0].value, told[1]))

    def go_on(self, seconds: float) -> None:
        """Let time pass, in ticks."""
        for _ in range(int(seconds / TICK)):
            ready = self.ready
            self.now += TICK
            self.poll()
            self.scaler.look()
            if self.woken or self.ready != ready or self.now % 60 == 0:
                self.look()

    def change_spec(self, revision: str) -> None:
        """Change the spec; new pods replace the present ones."""
        self.revision = revision
        self.pods = dict.fromkeys(self.pods, self.now)
        self.look()


def pod(name: str, made: float, start: float, now: float, revision: str = "h") -> Pod:
    """Return the pod as the operator sees it."""
    created, ready = EPOCH + timedelta(seconds=made), now - made >= start
    moved = created + timedelta(seconds=start) if ready else created
    return Pod(name, name, "m", revision, created, True, ready, None, False, created, moved=moved)


SCALES = Scaling(least=0, most=8, idle=60, down=60, target=Target())


def test_from_one_to_zero_and_back() -> None:
    world = World(SCALES)
    assert world.desired == 1, "a new model shows that it can be served"
    world.go_on(75)
    assert world.desired == 1, "it serves for 55 s"
    world.go_on(20)
    assert world.desired == 0
    world.gateways[ADDRESSES[0]].hold(KEY, 2)
    world.poll()
    assert world.woken, "immediately, not at the next check"
    world.look()
    assert world.desired == 1
    assert [reason for _, reason, _ in world.events] == ["ScaledToZero", "ScaledFromZero"]


def test_idle_time_counts_from_the_first_readiness() -> None:
    world = World(replace(SCALES, idle=10), start=200.0)
    world.go_on(205)
    assert world.desired == 1, "it has been idle for 200 s, and loaded for all of them"
    world.go_on(10)
    assert world.desired == 0
    assert "failure" not in world.status["scaling"]
    assert world.status["scaling"]["loadedRevision"] == "h"


def test_a_client_that_gives_up_leaves_a_replica_that_comes_up() -> None:
    world = World(replace(SCALES, idle=10), start=40.0)
    world.go_on(60)
    assert world.desired == 0
    gateway = world.gateways[ADDRESSES[0]]
    gateway.hold(KEY)
    world.poll()
    world.look()
    gateway.let_go(KEY)
    gateway.of(KEY).in_flight = 0
    world.go_on(45)
    assert (world.desired, world.ready) == (1, 1), "a model that is requested again is served"
    world.go_on(10)
    assert world.desired == 0


def test_a_model_that_never_loads_goes_to_zero_after_its_deadline_and_is_tried_again_when_asked_for() -> None:
    world = World(SCALES, start=float("inf"), startup=600.0)
    world.go_on(300)
    world.begin()
    world.go_on(295)
    assert world.desired == 1, "a restarted operator continues from the pods"
    world.go_on(60)
    assert world.desired == 0
    failure = {
        "revision": "h",
        "reason": "ProgressDeadlineExceeded",
        "message": "no replica has loaded the model within 600 s",
    }
    assert world.status["scaling"]["failure"] == failure
    assert world.status["scaling"]["why"].startswith("it has not loaded in time, and no requests for ")
    world.begin()
    world.go_on(1200)
    assert (world.desired, world.status["scaling"]["failure"]) == (0, failure), "it is not tried again by itself"
    world.gateways[ADDRESSES[0]].hold(KEY)
    world.poll()
    world.look()
    assert world.desired == 1
    assert "failure" not in world.status["scaling"]


def test_a_pod_that_cannot_be_made_has_the_same_deadline() -> None:
    world = World(SCALES, startup=600.0)
    world.pods.clear()
    for at in range(0, 600, 60):
        world.now = float(at)
        world.poll()
        world.look()
        assert world.desired == 1
        world.pods.clear()
    world.now = 660.0
    world.poll()
    world.look()
    assert world.desired == 0


def test_a_spec_that_changes_at_zero_is_tried_once() -> None:
    world = World(SCALES, startup=600.0)
    world.go_on(120)
    assert world.desired == 0
    world.change_spec("h2")
    assert world.desired == 1
    assert world.events[-1][2] == "from 0 to 1: its spec has changed: one replica shows whether it loads"
    world.go_on(300)
    assert (world.desired, world.status["scaling"]["loadedRevision"]) == (0, "h2")
    events = len(world.events)
    world.begin()
    world.go_on(300)
    assert len(world.events) == events
    world.start = float("inf")
    world.change_spec("h3")
    world.go_on(700)
    assert (world.desired, world.status["scaling"]["failure"]["revision"]) == (0, "h3")
    world.change_spec("h4")
    assert world.desired == 1, "another spec is another try"


def test_a_model_of_before_this_was_written_counts_as_loaded_by_its_stable_revision() -> None:
    world = World(SCALES)
    for stable, desired in (("h", 0), ("h0", 1)):
        world.pods.clear()
        world.status = {"desiredReplicas": 0, "stableRevision": stable}
        world.begin()
        assert world.desired == desired


def test_load_that_stays_the_same_leads_to_one_number() -> None:
    world = World(SCALES)
    for gateway in world.gateways.values():
        gateway.ask(KEY, 17)
    world.go_on(600)
    assert world.desired == 3
    assert {number for at, number in world.decisions if at > 60} == {3}
    assert {reason for _, reason, _ in world.events} == {"ScaledUp"}


def test_a_burst_is_not_followed_down_and_up_again() -> None:
    """A burst comes every 30 s; with a window of 60 s, its replicas stay."""
    world = World(SCALES)
    for _ in range(20):
        world.gateways[ADDRESSES[0]].ask(KEY, 34)
        world.go_on(10)
        world.gateways[ADDRESSES[0]].end(KEY, 34)
        world.go_on(20)
    assert len([reason for _, reason, _ in world.events if "Down" in reason]) <= 1, world.events
    world.go_on(120)
    assert world.desired == 0


def test_what_a_process_has_learned_stands_in_the_status() -> None:
    scaling = Scaling(least=1, most=8, idle=60, down=60, target=Target(None, ttft=1.0))
    world = World(scaling, start=40.0)
    world.go_on(120)
    gateway = world.gateways[ADDRESSES[0]]
    for _ in range(40):
        gateway.ask(KEY, 6)
        world.go_on(5)
        gateway.end(KEY, 6, first_byte=1.8)
    found = world.status["scaling"]
    assert 1 <= float(found["requestsPerReplica"]) < 8
    assert found["startSeconds"] == 40
    learned = found["requestsPerReplica"]
    world.begin()
    world.go_on(10)
    assert world.status["scaling"]["requestsPerReplica"] == learned
    assert world.scaler._models[KEY].history.start == 40
    assert world.desired > 1, "a replica carries fewer than there are"


@pytest.mark.parametrize("load_line", [1.0, 7.44, 1048576.5, 1e9, 1e300])
def test_every_figure_that_can_be_learned_fits_the_schema(load_line: float) -> None:
    written = write_scaling_status(ScalingStatus(load_line=load_line))
    jsonschema.Draft202012Validator(SCALING).validate(written)
    assert read_scaling_status({"scaling": written}).load_line == pytest.approx(min(load_line, 1e9), abs=0.05)


def test_a_model_that_scaled_by_its_spec_keeps_what_it_has() -> None:
    world = World(SCALES)
    world.pods = {f"q{index}": 0.0 for index in range(5)}
    world.status = {}
    world.begin()
    assert world.desired == 5


def test_a_gateway_that_is_silent_is_told_of_in_the_status_and_only_then() -> None:
    world = World(SCALES)
    for gateway in world.gateways.values():
        gateway.ask(KEY, 2)
    world.go_on(60)
    world.gateways[ADDRESSES[0]].dead = True
    world.go_on(30)
    assert "trouble" not in world.status["scaling"]
    world.go_on(150)
    assert world.status["scaling"]["trouble"] == f"gateway {ADDRESSES[0]}: it is not reachable"
    world.gateways[ADDRESSES[0]].restart("new")
    world.go_on(150)
    assert "trouble" not in world.status["scaling"]


class Scaled(RuleBasedStateMachine):
    """Requests come and go, gateways fail and report wrongly, operators are killed: the invariants hold at all
    times.
    """

    world: World

    @initialize(
        least=st.integers(0, 2),
        more=st.integers(1, 6),
        idle=st.sampled_from([30, 60]),
        down=st.sampled_from([0, 30, 120]),
        start=st.sampled_from([5.0, 60.0, float("inf")]),
        startup=st.sampled_from([100.0, 400.0]),
    )
    def begin(self, least: int, more: int, idle: int, down: int, start: float, startup: float) -> None:
        scaling = Scaling(least=least, most=least + more, idle=idle, down=down, target=Target(4, ttft=1.0))
        self.world = World(scaling, start, startup)
        self.checked = 0

    @rule(which=st.sampled_from(ADDRESSES), count=st.integers(1, 40))
    def ask(self, which: str, count: int) -> None:
        gateway = self.world.gateways[which]
        if self.world.ready:
            gateway.ask(KEY, count)
        else:
            gateway.hold(KEY, count)

    @rule(which=st.sampled_from(ADDRESSES), took=st.sampled_from([0.1, 3.0]))
    def end(self, which: str, took: float) -> None:
        gateway = self.world.gateways[which]
        if self.world.ready or not gateway.of(KEY).held:
            gateway.let_go(KEY)
            gateway.end(KEY, gateway.of(KEY).in_flight, took)

    @rule(which=st.sampled_from(ADDRESSES))
    def give_up(self, which: str) -> None:
        """Waiting clients disconnect."""
        model = self.world.gateways[which].of(KEY)
        model.in_flight -= model.held
        self.world.gateways[which].let_go(KEY)

    @rule(which=st.sampled_from(ADDRESSES))
    def fall_silent(self, which: str) -> None:
        self.world.gateways[which].dead = True

    @rule(which=st.sampled_from(ADDRESSES))
    def begin_anew(self, which: str) -> None:
        self.world.gateways[which].restart(f"{which}-{self.world.now}")

    @rule(seconds=st.sampled_from([5.0, 20.0, 45.0, 150.0]))
    def wait(self, seconds: float) -> None:
        self.world.go_on(seconds)

    @rule()
    def kill(self) -> None:
        self.world.begin()

    @rule(revision=st.sampled_from(["h", "h2"]), start=st.sampled_from([5.0, 60.0, float("inf")]))
    def change_spec(self, revision: str, start: float) -> None:
        """Change to a spec that loads faster, slower or never."""
        if revision != self.world.revision:
            self.world.start = start
            self.world.change_spec(revision)

    @precondition(lambda self: not any(gateway.dead for gateway in self.world.gateways.values()))
    @rule()
    def a_request_that_waits_gets_a_replica(self) -> None:
        self.world.poll()
        self.world.scaler.look()
        if self.world.woken:
            self.world.look()
        if any(gateway.of(KEY).held for gateway in self.world.gateways.values()):
            assert self.world.desired >= 1

    @invariant()
    def fewer_only_after_having_watched(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        for (_, before), (at, after) in pairwise(world.decisions[self.checked :]):
            if after < before:
                assert at - world.began >= (world.scaling.down if after else world.scaling.idle)
                assert not any(gateway.dead for gateway in world.gateways.values())
        self.checked = max(0, len(world.decisions) - 1)

    @invariant()
    def what_loads_is_left_alone(self) -> None:
        """No replica is removed before its startup deadline, or shortly after it became ready."""
        if not hasattr(self, "world"):
            return
        for at, made in self.world.removed:
            ready = made + self.world.start
            served = at >= ready and at - ready >= self.world.scaling.idle
            assert served or at - made >= self.world.startup
        self.world.removed.clear()

    @invariant()
    def at_zero_it_has_loaded_or_says_why_not(self) -> None:
        if hasattr(self, "world") and not self.world.desired:
            told = self.world.status["scaling"]
            assert (told.get("loadedRevision") == self.world.revision) is ("failure" not in told)

    @invariant()
    def bounds_are_kept(self) -> None:
        if hasattr(self, "world"):
            assert self.world.scaling.least <= self.world.desired <= self.world.scaling.most

    def teardown(self) -> None:
        """Without requests, and with all gateways reporting, the minimum is reached and stays."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for address, gateway in world.gateways.items():
            gateway.restart(f"last-{address}")
        world.go_on(world.scaling.idle + world.scaling.down + world.startup + 200)
        assert world.desired == world.scaling.least
        told = len(world.events)
        world.go_on(300)
        assert len(world.events) == told


TestScaled = Scaled.TestCase
TestScaled.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize(("named_before", "counted"), [(False, True), (True, False)])
def test_requests_that_a_gateway_first_tells_of_count_unless_they_came_before_it_was_heard(
    named_before: bool, counted: bool
) -> None:
    """The time of requests that were counted before the model was followed is unknown."""
    now = EPOCH
    scaler = Scaler(clock=lambda: now)
    scaler.registry.keep(ADDRESSES[:1], now.timestamp())
    entry = ModelDemand(KEY.namespace, KEY.name, asked=60)
    scaler.registry.take(
        ADDRESSES[0], Demand("g", 1, now.timestamp(), (entry,) if named_before else ()), now.timestamp()
    )
    scaler.decide(KEY, Scaling(1, 9), {}, [], revision="h", startup=3600.0)
    scaler.registry.take(ADDRESSES[0], Demand("g", 2, now.timestamp(), (entry,)), now.timestamp())
    now += timedelta(seconds=TICK)
    scaler.decide(KEY, Scaling(1, 9), {}, [], revision="h", startup=3600.0)
    assert (scaler._models[KEY].window.rate > 0) is counted


def keys_read(models: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many entries a scaler reads of a report that names this many models for the first time."""
    scaling, registry, read = Scaling(1, 9), GatewayRegistry(), 0
    scaler = Scaler(registry, clock=lambda: EPOCH)
    now = EPOCH.timestamp()
    registry.keep(ADDRESSES[:1], now)
    for number in range(models):
        scaler.decide(ObjectKey("team", f"new{number}"), scaling, {}, [], revision="h", startup=3600.0)
    old = tuple(ModelDemand("team", f"old{number}") for number in range(models))
    new = tuple(ModelDemand("team", f"new{number}", asked=3) for number in range(models))

    def key(entry: ModelDemand) -> ObjectKey:
        nonlocal read
        read += 1
        return ObjectKey(entry.namespace, entry.name)

    registry.take(ADDRESSES[0], Demand("g", 1, now, old), now)
    with monkeypatch.context() as patch:
        patch.setattr(ModelDemand, "key", property(key))
        registry.take(ADDRESSES[0], Demand("g", 2, now, old + new), now)
    assert [entry.asked for entry in scaler.demand(ObjectKey("team", "new0"))] == [3]
    return read


def test_taking_in_an_answer_is_linear_in_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    once, twice = keys_read(50, monkeypatch), keys_read(100, monkeypatch)
    assert once > 0
    assert twice == 2 * once
