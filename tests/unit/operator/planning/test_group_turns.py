"""Groups share a cluster: only one is placed at a time, none holds pods for long without all of them, none starves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from operator_support.objects import EPOCH, grouped, spec_of
from operator_support.world import SimulatedPod, State, World, fits_of

from plimsoll_operator.planning.actions import Plan
from plimsoll_operator.planning.group_placement import begin_turn, end_turn, is_being_placed
from plimsoll_operator.planning.group_turns import FIRST_RETRY, LONGEST_RETRY, UNLIMITED, GroupTurns, Turn
from plimsoll_operator.planning.plan import plan
from plimsoll_operator.planning.pod_view import view
from plimsoll_operator.planning.pods import Observed, ServiceState
from plimsoll_operator.planning.units import units_of
from plimsoll_operator.spec.identity import ObjectKey, Owner
from plimsoll_operator.spec.model_deployment import Spec

SECOND = timedelta(seconds=1)
HELD = timedelta(seconds=90)
"""No incomplete group holds pods for longer than this."""


class Part(World):
    """The pods of one model in a cluster whose room it shares."""

    def __init__(self, cluster: Cluster, size: int) -> None:
        super().__init__([], ServiceState.OURS, size=size)
        self.cluster = cluster

    def _place(self, pod: SimulatedPod) -> None:
        full = self.cluster.used >= self.cluster.slots
        pod.state = State.UNSCHEDULABLE if full else State.LOADING


@dataclass
class Cluster:
    """Models that are reconciled one after the other, and room for `slots` pods."""

    specs: list[Spec]
    slots: int
    turns: GroupTurns = field(default_factory=GroupTurns)
    parts: dict[ObjectKey, Part] = field(default_factory=dict)
    given_back: list[ObjectKey] = field(default_factory=list)
    due: dict[ObjectKey, timedelta | None] = field(default_factory=dict)
    now: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        self.parts = {spec.key: Part(self, spec.pods_per_replica) for spec in self.specs}
        self.due = {spec.key: timedelta(0) for spec in self.specs}

    @property
    def used(self) -> int:
        return sum(p.holds_room for part in self.parts.values() for p in part.ours())

    def seen(self, key: ObjectKey, turn: Turn = UNLIMITED) -> Observed:
        return replace(self.parts[key].observed(), turn=turn)

    def reconcile(self, key: ObjectKey) -> Plan:
        """Reconcile a model like the operator does."""
        spec = next(spec for spec in self.specs if spec.key == key)
        part = self.parts[key]
        pods = part.observed().pods
        turn, woken = begin_turn(self.turns, spec, pods, part.now)
        seen = view(spec, fits_of("new"), self.seen(key, turn))
        planned = plan(seen)
        woken = [*woken, *end_turn(self.turns, seen, planned)]
        part.apply(planned.actions, "new")
        if planned.given_back:
            self.given_back.append(key)
        self.due |= {other: self.now for other in woken if other in self.due}
        self.due[key] = None if planned.wait is None else self.now + planned.wait
        self.turns.check_integrity()
        return planned

    def step(self, order: Iterable[ObjectKey] | None = None) -> None:
        """Let a second pass: pods proceed, and models with changes or that are due are reconciled."""
        self.now += SECOND
        for part in self.parts.values():
            part.now = EPOCH + self.now
        for key, part in self.parts.items():
            before = [(p.name, p.state) for p in part.ours()]
            for pod in part.ours():
                part.proceed(pod)
            if before != [(p.name, p.state) for p in part.ours()]:
                self.due[key] = self.now
        for key in order or self.parts:
            for _ in range(9):  # A reconcile changes pods, whose events lead to the next one.
                due = self.due[key]
                if due is None or due > self.now or not self.reconcile(key).actions:
                    break
                self.due[key] = self.now

    def placing(self) -> list[ObjectKey]:
        """Return the models of groups that are being placed."""
        return [
            key
            for key, part in self.parts.items()
            for unit in units_of(part.observed().pods)
            if is_being_placed(unit, part.now)
        ]

    def check_held(self) -> None:
        """Check that no incomplete group has held pods for too long."""
        for part in self.parts.values():
            for unit in units_of(part.observed().pods):
                assert not unit.live or unit.scheduled or part.now - unit.created <= HELD

    def ready(self) -> int:
        """Return the number of ready replicas."""
        return sum(unit.ready for part in self.parts.values() for unit in units_of(part.observed().pods))

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.step()
            assert len(self.placing()) <= 1
            self.check_held()


def named(count: int, size: int, prefix: str = "m", **changes: object) -> list[Spec]:
    """Return models, the first of which is the oldest."""
    made = [replace(grouped(size, **changes), owner=owner_of(f"{prefix}{number}")) for number in range(count)]
    return [replace(spec, created=EPOCH + number * SECOND) for number, spec in enumerate(made)]


def owner_of(name: str) -> Owner:
    return replace(spec_of().owner, key=ObjectKey("team", name))


def test_twenty_groups_on_room_for_five_settle() -> None:
    cluster = Cluster(named(20, 2), slots=11)
    cluster.run(30)
    assert cluster.ready() == 5
    cluster.run(1200)
    assert cluster.ready() == 5
    assert cluster.used <= 11
    first = next(iter(cluster.parts.values()))
    for pod in first.ours():
        first.pods.remove(pod)
    cluster.specs[0] = cluster.specs[0].scaled(0)
    cluster.due[cluster.specs[0].key] = cluster.now
    cluster.run(int(LONGEST_RETRY.total_seconds()) + 90)
    assert cluster.ready() == 5


def test_a_group_that_fits_starts_behind_ten_that_do_not() -> None:
    specs = [*named(10, 8, "large"), *named(1, 2, "small")]
    cluster = Cluster([*specs[:10], replace(specs[10], created=EPOCH + timedelta(hours=1))], slots=5)
    cluster.run(90)
    assert cluster.ready() == 1
    assert {key.name for key in cluster.given_back} == {f"large{number}" for number in range(10)}


def test_a_newcomer_goes_before_groups_that_were_given_back() -> None:
    cluster = Cluster([*named(3, 8, "large"), *named(1, 2, "small", replicas=0)], slots=5)
    cluster.run(300)
    assert cluster.ready() == 0
    cluster.specs[-1] = cluster.specs[-1].scaled(1)
    cluster.due[cluster.specs[-1].key] = cluster.now
    cluster.run(15)
    assert cluster.ready() == 1


def test_a_group_keeps_its_pods_for_a_minute_if_nobody_waits() -> None:
    """A cluster autoscaler adds a node in that time."""
    cluster = Cluster(named(1, 2), slots=1)
    cluster.run(55)
    assert not cluster.given_back
    cluster.slots = 2
    cluster.run(5)
    assert cluster.ready() == 1
    assert not cluster.given_back


def test_a_group_without_room_tries_again_after_increasing_waits() -> None:
    cluster = Cluster(named(1, 2), slots=1)
    tries: list[int] = []
    for second in range(2400):
        before = len(cluster.given_back)
        cluster.step()
        if len(cluster.given_back) > before:
            tries.append(second)
    pauses = [later - earlier - 62 for earlier, later in pairwise(tries)]
    expected = [10, 20, 40, 80, 160, 300, 300]
    assert len(pauses) >= 6
    assert all(abs(found - wanted) <= 3 for found, wanted in zip(pauses, expected, strict=False)), pauses


def test_single_pods_need_no_turn() -> None:
    single = replace(spec_of(), owner=owner_of("single"), replicas=3)
    cluster = Cluster([*named(2, 8), single], slots=4)
    cluster.run(5)
    assert sum(p.ready for p in cluster.parts[single.key].ours()) == 3


def test_a_model_that_is_gone_leaves_its_turn() -> None:
    turns, keys = GroupTurns(), [ObjectKey("team", name) for name in "ab"]
    assert turns.turn(keys[0], EPOCH, placing=False, now=EPOCH).may_place
    assert not turns.turn(keys[1], EPOCH, placing=False, now=EPOCH).may_place
    assert turns.note(keys[1], EPOCH, EPOCH, placing=False, waits=True) == [keys[0]]
    assert turns.end(keys[0], EPOCH) == [keys[1]]
    assert turns.turn(keys[1], EPOCH, placing=False, now=EPOCH).may_place
    assert turns.end(keys[0], EPOCH) == []


def test_after_a_restart_groups_that_are_being_placed_have_their_turns() -> None:
    turns, keys = GroupTurns(), [ObjectKey("team", name) for name in "abc"]
    for key in keys[:2]:
        assert not turns.turn(key, EPOCH, placing=True, now=EPOCH).may_place
    assert not turns.turn(keys[2], EPOCH, placing=False, now=EPOCH).may_place


def test_a_rejected_pod_gives_the_turn_to_the_next() -> None:
    turns, specs = GroupTurns(), named(2, 2)
    turn, _ = begin_turn(turns, specs[0], (), EPOCH)
    seen = view(specs[0], fits_of("new"), Observed((), ServiceState.OURS, EPOCH, turn=turn))
    planned = plan(seen)
    assert len(planned.actions) == 1
    end_turn(turns, seen, planned)
    assert not begin_turn(turns, specs[1], (), EPOCH)[0].may_place
    end_turn(turns, seen, planned, "exceeded quota")
    assert begin_turn(turns, specs[1], (), EPOCH)[0].may_place
    again = begin_turn(turns, specs[0], (), EPOCH)[0]
    assert (again.may_place, again.words, again.retry_in) == (False, "exceeded quota", FIRST_RETRY)


def test_without_turns_all_groups_are_created_and_none_is_given_back() -> None:
    cluster = Cluster(named(3, 2, replicas=2), slots=1, turns=GroupTurns(limited=False))
    for _ in range(400):
        cluster.step()
    assert [[pod.index for pod in part.ours()] for part in cluster.parts.values()].count([0, 0]) == 2
    assert not cluster.given_back
    cluster.slots = 12
    for _ in range(5):
        cluster.step()
    assert cluster.ready() == 6


def test_a_worker_that_finds_no_node_again_is_given_back_with_its_group_after_a_minute() -> None:
    cluster = Cluster([*named(1, 2), *named(1, 2, "waits")], slots=2)
    cluster.run(300)
    assert cluster.ready() == 1
    (part,) = [each for each in cluster.parts.values() if any(p.ready for p in each.ours())]
    part.pods = [p for p in part.pods if p.index == 0]
    cluster.slots, key = 1, next(key for key, each in cluster.parts.items() if each is part)
    cluster.due[key] = cluster.now
    before = len(cluster.given_back)
    for _ in range(58):
        cluster.step()
    assert key not in cluster.given_back[before:]
    for _ in range(10):
        cluster.step()
    assert key in cluster.given_back[before:]


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(2, 4), st.integers(1, 2)), min_size=1, max_size=5),
    st.integers(0, 12),
    st.sets(st.integers(0, 60), max_size=2),
)
def test_whatever_fits_is_placed_in_the_end(shapes: list[tuple[int, int]], slots: int, restarts: set[int]) -> None:
    """The operator restarts at some seconds. In the end no missing group fits into the room that is left."""
    specs = [
        replace(grouped(size, replicas=replicas), owner=owner_of(f"m{number}"), created=EPOCH + number * SECOND)
        for number, (size, replicas) in enumerate(shapes)
    ]
    cluster = Cluster(specs, slots)
    for second in range(600):
        if second in restarts:
            cluster.turns = GroupTurns()
            cluster.due = dict.fromkeys(cluster.due, cluster.now)
        cluster.step()
        cluster.check_held()
        assert second < 120 or len(cluster.placing()) <= 1
    units = {key: units_of(part.observed().pods) for key, part in cluster.parts.items()}
    placed = {key: [unit for unit in found if unit.scheduled and unit.live] for key, found in units.items()}
    room = slots - sum(unit.size for found in placed.values() for unit in found)
    missing = [each.pods_per_replica for each in specs if len(placed[each.key]) < each.replicas]
    assert 0 <= room < min(missing, default=99)


def test_places_without_room_are_avoided_until_all_were_tried() -> None:
    turns, key, now = GroupTurns(), ObjectKey("team", "a"), EPOCH
    found = []
    for place in ("z1", "z2", "z1", ""):
        turns.note(key, EPOCH, now, placing=True, waits=False, given_back="no node", place=place)
        found.append(turns.turn(key, EPOCH, placing=False, now=now).avoid)
    assert found == [("z1",), ("z1", "z2"), ("z1",), ("z1",)]


def test_a_model_whose_reconcile_has_failed_does_not_hurry_others() -> None:
    turns, (failed, other) = GroupTurns(), [ObjectKey("team", name) for name in "ab"]
    assert turns.turn(failed, EPOCH, placing=False, now=EPOCH).may_place
    turns.interrupt(failed, EPOCH, EPOCH)
    assert not turns.turn(other, EPOCH, placing=True, now=EPOCH).crowded
    assert turns.turn(other, EPOCH, placing=True, now=EPOCH + FIRST_RETRY).crowded


def test_the_longest_wait_is_bounded() -> None:
    turns, key, now = GroupTurns(), ObjectKey("team", "a"), EPOCH
    for _ in range(40):
        turns.note(key, EPOCH, now, placing=True, waits=False, given_back="no node")
        wait = turns.turn(key, EPOCH, placing=False, now=now).retry_in
        assert wait is not None
        now += wait
    assert wait == LONGEST_RETRY


def test_a_roll_without_room_deletes_an_old_group_first() -> None:
    """With maxUnavailable 1 of 2 replicas."""
    cluster = Cluster(named(1, 2, replicas=2), slots=4)
    cluster.run(20)
    (part,) = cluster.parts.values()
    for pod in part.ours():
        pod.hash = "old"
    cluster.due[cluster.specs[0].key] = cluster.now
    for _ in range(300):
        cluster.run(1)
        assert cluster.ready() >= 1
    assert {pod.hash for pod in part.ours()} == {"new"}
    assert cluster.ready() == 2
    assert len(cluster.given_back) == 1


def test_a_model_that_loads_after_it_waited_does_not_hold_others_up() -> None:
    """It still rolls, so it is not placed, but it wants no group now."""
    turns, (rolling, newer) = GroupTurns(), named(2, 2)
    turns.note(rolling.key, rolling.created, EPOCH, placing=False, waits=True)
    assert turns.turn(rolling.key, rolling.created, placing=False, now=EPOCH).may_place
    turns.note(rolling.key, rolling.created, EPOCH, placing=True, waits=False)
    turn = turns.turn(rolling.key, rolling.created, placing=False, now=EPOCH)
    assert turns.note(rolling.key, rolling.created, EPOCH, placing=False, waits=False) == []
    turn = turns.turn(newer.key, newer.created, placing=False, now=EPOCH)
    assert (turn.may_place, turn.crowded) == (True, False)


def test_a_model_that_loads_after_a_group_was_given_back_does_not_hold_others_up() -> None:
    turns, (rolling, other) = GroupTurns(), named(2, 2)
    turns.note(rolling.key, rolling.created, EPOCH, placing=True, waits=False, given_back="no node")
    placed = EPOCH + FIRST_RETRY
    assert turns.turn(rolling.key, rolling.created, placing=False, now=placed).may_place
    turns.note(rolling.key, rolling.created, placed, placing=True, waits=False)
    assert turns.turn(rolling.key, rolling.created, placing=False, now=placed).tries == 1
    assert turns.note(rolling.key, rolling.created, placed, placing=False, waits=False) == []
    turns.note(other.key, other.created, placed, placing=True, waits=False, given_back="no node")
    later = placed + FIRST_RETRY
    assert turns.turn(other.key, other.created, placing=False, now=later).may_place
