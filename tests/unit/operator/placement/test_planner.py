"""Decisions of the planner in small pools."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.explain import explain
from plimsoll_operator.placement.ledger import MODELS_PER_HOST
from plimsoll_operator.placement.planner import plan
from plimsoll_operator.placement.records.action import Action, ActionCause, First, Move, Place, Sleep, Unload, Wake
from plimsoll_operator.placement.records.host import Copy, Host, Sleepers
from plimsoll_operator.placement.records.level import Condition, Level, Pressure, State
from plimsoll_operator.placement.records.model import Model, Need, Replicas
from plimsoll_operator.placement.records.plan import Refused
from plimsoll_operator.placement.records.pool import Demand, PoolState

NOW, OLD = 10_000.0, 9_000.0


def key(name: str) -> ObjectKey:
    return ObjectKey("pool" if name.startswith("h") else "team", name)


def model(name: str, size: int = 40, **more: Any) -> Model:
    return Model(key(name), "1", (Need(size, host=size),), load_seconds=10.0, wake_seconds=1.0, **more)


def awake(name: str, size: int = 40, **more: Any) -> Copy:
    given = {"weights": size, "since": OLD, "last_used": OLD, "rate": 0.001, **more}
    return Copy(key(name), "1", State.RESIDENT, **given)


def image(name: str, size: int = 40, **more: Any) -> Copy:
    return Copy(key(name), "1", State.IN_HOST, **{"host": size, "since": OLD, "rate": 0.001, **more})


def files(name: str, **more: Any) -> Copy:
    return Copy(key(name), "1", State.ON_DISK, since=OLD, **more)


def host(name: str, *copies: Copy, line: int = 100, sleepers: int = 100, **more: Any) -> Host:
    used = sum(copy.host for copy in copies)
    return Host(
        key(name), f"node-{name}", line, line, sleepers=Sleepers(sleepers, used), time=NOW, models=copies, **more
    )


def pool(models: list[Model], hosts: list[Host], **waiting: float) -> PoolState:
    demand = tuple(Demand(key(name), 1, NOW - seconds) for name, seconds in waiting.items())
    return PoolState(NOW, tuple(models), tuple(hosts), demand)


def actions(state: PoolState) -> list[Action]:
    return list(plan(state).actions)


def brief(state: PoolState) -> list[str]:
    return [f"{type(action).__name__} {action.model.name} {action.host.name}" for action in plan(state).actions]


def test_what_nobody_asks_for_is_placed_as_files_where_least_is_placed() -> None:
    state = pool([model("a"), model("b")], [host("h1", awake("a")), host("h2")])
    (placed,) = actions(state)
    assert isinstance(placed, Place)
    assert (placed.model.name, placed.host.name, placed.level) == ("b", "h2", Level.ON_DISK)


def test_a_host_is_given_no_more_models_than_its_modelhost_lists() -> None:
    """The gateway does not know other models."""
    full = host("h1", *(files(f"f{number}", load_seconds=1.0) for number in range(MODELS_PER_HOST - 1)))
    there = [model(copy.model.name, 1) for copy in full.models]
    made = plan(pool([*there, model("a", 1), model("b", 1)], [full]))
    assert [action.model.name for action in made.actions] == ["a"]
    assert [(refusal.model.name, refusal.reason) for refusal in made.refusals] == [("b", Refused.NO_ROOM)]
    state = pool([*there, model("a", 1), model("b", 1)], [replace(full, models=(*full.models, files("a")))], b=0)
    assert brief(state) == []
    assert "it has 256 models, and the limit is 256" in explain(state, key("b"))
    assert brief(replace(state, hosts=(*state.hosts, host("h2"))))[0] == "Place b h2"


def test_a_host_with_as_many_models_as_it_takes_gets_none_for_balance() -> None:
    heavy, many = [f"a{n}" for n in range(6)], [f"f{n}" for n in range(MODELS_PER_HOST)]
    models = [*(model(name, 30_000) for name in heavy), *(model(name, 1) for name in many)]
    hosts = [host("h1", *map(files, heavy), line=100_000), host("h2", *map(files, many), line=100_000)]
    assert brief(pool(models, hosts)) == []
    hosts[1] = replace(hosts[1], models=hosts[1].models[1:])
    assert brief(pool([each for each in models if each.key.name != "f0"], hosts)) == ["Move a5 h2"]


def test_an_image_wakes_where_it_lies_before_files_are_loaded_elsewhere() -> None:
    state = pool([model("a"), model("b")], [host("h1", image("a")), host("h2")], a=0)
    assert brief(state)[0] == "Wake a h1"


def test_the_model_of_least_value_gives_way_and_the_reason_has_the_figures() -> None:
    models = [model("a"), model("b"), model("c", 50)]
    state = pool(models, [host("h1", awake("a", rate=0.01), awake("b", rate=0.001), files("c"))], c=0)
    sleep, wake = actions(state)
    assert isinstance(sleep, Sleep)
    assert isinstance(wake, Wake)
    assert (sleep.model.name, sleep.level, sleep.because) == ("b", Level.IN_HOST, ActionCause.EVICTED)
    assert "evicted for team/c: retention value" in sleep.why
    assert "idle for 17 min, 1.0 s to wake it again" in sleep.why


@pytest.mark.parametrize(
    ("left", "waited", "level"),
    [(0.0001, 0, Level.IN_HOST), (1.0, 0, Level.ON_DISK), (0.0001, 1, Level.ON_DISK)],
    ids=["worth less", "worth more", "waited for"],
)
def test_an_image_is_dropped_for_another_that_is_worth_more(left: float, waited: int, level: Level) -> None:
    """`a` makes room for `c`, and host memory holds the image of `b` already."""
    copies = [awake("a", 80, rate=0.001), image("b", rate=left, waiting=waited), files("c")]
    state = pool([model("a", 80), model("b"), model("c", 50)], [host("h1", *copies, sleepers=80)], c=0)
    slept = [(each.model.name, each.level) for each in actions(state) if isinstance(each, Sleep)]
    assert slept == ([("b", Level.ON_DISK)] if level is Level.IN_HOST else []) + [("a", level)]


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"active": 1}, {}),
        ({"waiting": 1}, {}),
        ({"since": NOW - 9}, {}),
        ({}, {"pinned": True}),
        ({}, {"priority": 1}),
    ],
)
def test_what_never_gives_way(changes: dict[str, Any], more: dict[str, Any]) -> None:
    """In use, waited for, below the minimum residency, pinned, or of higher priority, however long the request
    waits.
    """
    state = pool([model("a", 80, **more), model("b", 50)], [host("h1", awake("a", 80, **changes), files("b"))], b=1000)
    made = plan(state)
    assert made.actions == ()
    assert [refusal.model.name for refusal in made.refusals] == ["b"]


def test_a_hot_model_gives_way_only_once_the_request_has_waited() -> None:
    """It has ten requests a second, so evicting it for half a minute costs more than it saves."""
    models = [model("a", 80), replace(model("b", 80), load_seconds=0.5)]
    hosts = [host("h1", awake("a", 80, rate=10.0), files("b"))]
    early = plan(pool(models, hosts, b=5))
    assert early.actions == ()
    assert early.refusals[0].reason is Refused.WAITS_FOR_TURN
    assert early.wait == 25.0
    assert brief(pool(models, hosts, b=31)) == ["Sleep a h1", "Wake b h1"]


def test_a_higher_priority_displaces_a_lower_one_to_be_kept_awake() -> None:
    models = [model("a", 80), model("b", 80, priority=1, replicas=Replicas(1, 1, 1))]
    state = pool(models, [host("h1", awake("a", 80, rate=10.0), files("b"))])
    assert brief(state) == ["Sleep a h1", "Wake b h1"]
    assert "of higher priority" in actions(state)[0].why
    equals = pool([models[0], replace(models[1], priority=0)], list(state.hosts))
    assert actions(equals) == []


def test_pinned_models_that_exceed_the_lines_together_are_refused_with_numbers() -> None:
    models = [model(name, 60, pinned=True) for name in ("a", "b", "c")]
    made = plan(pool(models, [host("h1"), host("h2")]))
    (refusal,) = made.refusals
    assert refusal.reason is Refused.PINNED_BEYOND_LINE
    assert refusal.numbers == {"need": 60, "pinned": 180, "lines": 200, "left": 40}
    assert sum(isinstance(a, Place) and a.level is Level.RESIDENT for a in made.actions) == 2


def test_a_model_larger_than_any_host_is_refused_with_numbers() -> None:
    (refusal,) = plan(pool([model("a", 101)], [host("h1"), host("h2", line=90)])).refusals
    assert (refusal.reason, refusal.numbers) == (Refused.TOO_LARGE, {"need": 101, "largest": 100})


def test_a_device_class_is_matched_or_refused() -> None:
    hosts = [host("h1", device="cpu"), host("h2", device="gpu")]
    (placed,) = actions(pool([model("a", device="gpu")], hosts))
    assert placed.host.name == "h2"
    (refusal,) = plan(pool([model("a", device="tpu")], hosts)).refusals
    assert refusal.reason is Refused.NO_DEVICE
    assert "class tpu, and the pool has cpu, gpu" in refusal.message


def test_groups_and_an_empty_pool_are_refused() -> None:
    pair = replace(model("a"), needs=(Need(1), Need(1)))
    assert plan(pool([pair], [host("h1")])).refusals[0].reason is Refused.GROUPS
    assert plan(pool([model("a")], [])).refusals[0].reason is Refused.NO_HOSTS


def test_what_lay_on_a_lost_host_is_placed_again_and_is_not_there_twice_when_it_returns() -> None:
    lost = host("h1", awake("a"), condition=Condition.LOST)
    state = pool([model("a")], [lost, host("h2")])
    (placed,) = actions(state)
    assert (type(placed), placed.host.name) == (Place, "h2")
    back = pool([model("a")], [replace(lost, condition=Condition.READY), host("h2", awake("a", since=OLD + 100))])
    (unloaded,) = actions(back)
    assert (type(unloaded), unloaded.host.name) == (Unload, "h1")


def test_a_model_that_drains_to_sleep_lies_where_it_is() -> None:
    """Its host puts it to sleep for another; a copy elsewhere would be surplus a moment later."""
    draining = Copy(key("a"), "1", State.DRAINING, weights=40, since=OLD, rate=0.001)
    assert brief(pool([model("a")], [host("h1", draining), host("h2")])) == []
    going = replace(draining, going=True)
    assert brief(pool([model("a")], [host("h1", going), host("h2")])) == ["Place a h2"]


@pytest.mark.parametrize("asleep", [files("a", waiting=3), image("a", waiting=3)], ids=["files", "image"])
def test_requests_that_wait_at_a_host_are_the_host_s_to_serve(asleep: Copy) -> None:
    """The host knows the service slices. The plan evicts nothing for them, and no other host loads their model."""
    full, free = host("h1", asleep, awake("b", 80)), host("h2")
    models = [model("a"), model("b", 80)]
    state = replace(pool(models, [full, free]), demand=(Demand(key("a"), since=NOW - 45),))
    assert plan(state).actions == ()
    assert plan(state).refusals == ()
    assert "3 requests waiting for 45 s, 3 of them at hosts, which wake it in turn" in explain(state, key("a"))


def test_requests_at_a_host_that_cannot_wake_their_model_are_the_planner_s() -> None:
    waits = files("a", waiting=1)
    models = [model("a")]
    for unable in (
        host("h1", waits, condition=Condition.DRAINING),
        host("h1", replace(waits, going=True)),
        host("h1", replace(waits, failures=1, retry=NOW + 20)),
        host("h1", replace(waits, revision="0")),
    ):
        assert "h2" in {action.host.name for action in actions(pool(models, [unable, host("h2")]))}, unable
    assert brief(pool(models, [host("h1", waits, condition=Condition.CORDONED), host("h2")])) == []


def test_a_request_at_a_gateway_is_not_left_to_a_host_where_another_waits() -> None:
    models = [model("a"), model("b", 80)]
    hosts = [host("h1", files("a", waiting=1), awake("b", 80, rate=0.0001))]
    assert brief(pool(models, hosts, a=5)) == ["Sleep b h1", "Wake a h1"]


@pytest.mark.parametrize("source", [files("a", waiting=1), image("a", waiting=1)], ids=["files", "image"])
def test_a_model_that_was_moved_for_a_request_stays_moved(source: Copy) -> None:
    """The request waits on the host without memory, whose copy is removed after no request waits there."""
    busy = awake("b", 80, active=2)

    def found(**target: Any) -> list[str]:
        arrived = Copy(key("a"), "1", since=NOW - 1, **target)
        models = [model("a", moved=NOW - 3), model("b", 80)]
        return brief(pool(models, [host("h1", source, busy), host("h2", arrived)], a=5))

    assert found(state=State.FETCHING) == []
    assert found(state=State.ON_DISK) == ["Wake a h2"]
    assert found(state=State.WAKING, weights=40) == []
    assert found(state=State.RESIDENT, weights=40) == []


def test_a_drained_host_is_left_once_nobody_uses_it_and_what_is_in_use_goes_on() -> None:
    hosts = [host("h1", awake("a", rate=0.1), awake("b", active=1), condition=Condition.DRAINING), host("h2")]
    moves = [action for action in actions(pool([model("a"), model("b")], hosts)) if isinstance(action, Move)]
    (move,) = moves
    assert (move.model.name, move.host.name, move.level, move.first) == ("a", "h2", Level.RESIDENT, First.PLACE)
    assert "Unload b h1" not in brief(pool([model("a"), model("b")], hosts))


def test_a_cordoned_host_keeps_what_it_has_and_takes_nothing_new() -> None:
    hosts = [host("h1", image("a"), condition=Condition.CORDONED), host("h2", awake("c", 100, active=1))]
    state = pool([model("a"), model("b"), model("c", 100)], hosts, a=0, b=1000)
    assert brief(state) == ["Wake a h1", "Place b h2"]


def test_full_pressure_puts_the_least_worth_to_sleep() -> None:
    hosts = [host("h1", awake("a", 50, rate=0.01), awake("b", 45), pressure=Pressure.FULL)]
    (sleep,) = actions(pool([model("a", 50), model("b", 45)], hosts))
    assert (sleep.model.name, sleep.because) == ("b", ActionCause.PRESSURE)


def test_a_replica_of_a_hot_model_takes_the_place_of_what_is_worth_less_than_half() -> None:
    hot = model("a", 80, replicas=Replicas(2, 0, 2))
    hosts = [host("h1", awake("a", 80, rate=5.0)), host("h2", awake("b", 80, rate=0.001))]
    assert brief(pool([hot, model("b", 80)], hosts)) == ["Sleep b h2", "Place a h2"]
    busy = [hosts[0], host("h2", awake("b", 80, rate=4.0))]
    assert not any(isinstance(action, Sleep) for action in actions(pool([hot, model("b", 80)], busy)))


def test_an_idle_model_moves_so_that_a_larger_one_fits() -> None:
    """Half of each host is free, and the victim is too valuable to be put to sleep."""
    models = [model("a", 50), model("b", 50), replace(model("c", 100), load_seconds=0.5)]
    hosts = [host("h1", awake("a", 50, rate=9.0)), host("h2", awake("b", 50, rate=9.0, active=1)), host("h3", line=60)]
    hosts[0] = replace(hosts[0], models=(*hosts[0].models, files("c")))
    made = plan(pool(models, hosts, c=0))
    assert [type(action) for action in made.actions] == [Move, Wake]
    assert (made.actions[0].model.name, made.actions[0].because) == ("a", ActionCause.DEFRAGMENTED)
    lately = [replace(models[0], moved=NOW - 10), *models[1:]]
    assert not any(isinstance(action, Move) for action in actions(pool(lately, hosts, c=0)))


def test_a_new_revision_replaces_the_old_one_in_its_place_where_nobody_uses_it() -> None:
    state = pool([replace(model("a"), revision="2")], [host("h1", image("a"))])
    (move,) = actions(state)
    assert isinstance(move, Move)
    assert (move.source, move.host, move.first) == (key("h1"), key("h1"), First.UNLOAD)


def test_scaled_to_zero_it_sleeps_and_stopped_it_goes() -> None:
    hosts = [host("h1", awake("a"))]
    (sleep,) = actions(pool([model("a", replicas=Replicas(0, 0, 1))], hosts))
    assert (type(sleep), sleep.because) == (Sleep, ActionCause.SCALED)
    assert brief(pool([model("a", replicas=Replicas(0, 0, 0))], hosts)) == ["Unload a h1"]


def test_a_host_where_loads_failed_is_left_alone_until_its_time() -> None:
    hosts = [host("h1", files("a", failures=2, retry=NOW + 20)), host("h2")]
    (move,) = actions(pool([model("a")], hosts, a=0))
    assert (type(move), move.host.name) == (Move, "h2")
    made = plan(pool([model("a")], hosts[:1], a=0))
    assert (made.actions, made.wait) == ((), 20.0)
    assert made.refusals[0].reason is Refused.FAILED_LATELY


def test_two_entries_of_one_host_or_model_are_refused() -> None:
    with pytest.raises(ValueError, match="hosts name pool/h1 more than once"):
        pool([], [host("h1"), host("h1")])


def test_an_explanation_tells_every_host_what_is_done_and_why() -> None:
    models = [model("a"), model("b"), model("c", 50)]
    state = pool(models, [host("h1", awake("a", rate=0.01), awake("b"), files("c")), host("h2", line=45)], c=0)
    text = explain(state, key("c"))
    assert "1 request waiting" in text
    assert "1. pool/h1: 10 s, has a copy, puts team/b (40 B) to sleep" in text
    assert "2. pool/h2: no (TooLarge): it needs 50 B of device memory, and the host has 45 B for models" in text
    assert "put team/b on pool/h1 to sleep as InHost (Evicted): evicted for team/c" in text
    with pytest.raises(KeyError, match="the pool has no model team/x; it has team/a, team/b, team/c"):
        explain(state, key("x"))


def lie(state: PoolState) -> dict[str, list[str]]:
    """Return the models on each host after the plan."""
    found: dict[str, list[str]] = {host.key.name: [] for host in state.hosts}
    for placement in plan(state).placements:
        found[placement.host.name].append(placement.model.name)
    return found


@pytest.mark.parametrize("size", [0, 60])
def test_models_that_nobody_has_asked_for_yet_lie_on_all_hosts_alike(size: int) -> None:
    """Return whether or not their sizes are known, and whatever was placed before them."""
    names = [f"m{number}" for number in range(8)]
    made = lie(pool([model(name, size) for name in names], [host("h1"), host("h2")]))
    assert sorted(map(len, made.values())) == [4, 4]
    before = [host("h1", files("m0"), files("m1"), files("m2")), host("h2")]
    assert sorted(map(len, lie(pool([model(name, size) for name in names], before)).values())) == [4, 4]


def test_a_host_of_twice_the_memory_holds_twice_as_many() -> None:
    names = [f"m{number}" for number in range(9)]
    made = lie(pool([model(name) for name in names], [host("h1"), host("h2", line=200)]))
    assert {name: len(found) for name, found in made.items()} == {"h1": 3, "h2": 6}


def test_what_a_lost_host_served_most_is_spread_over_those_that_are_left() -> None:
    busy = [files(name, rate=0.5) for name in ("a", "b")]
    quiet = [files(name) for name in ("c", "d")]
    state = pool([model(name) for name in "abcd"], [host("h1"), host("h2"), host("h3", *busy, *quiet)])
    state = replace(
        state,
        hosts=(*state.hosts[:2], replace(state.hosts[2], condition=Condition.LOST)),
        demand=tuple(Demand(key(name), rate=0.5) for name in ("a", "b")),
    )
    made = lie(state)
    assert {len({"a", "b"} & set(found)) for found in made.values() if found} == {1}
    assert sorted(map(len, made.values())) == [0, 2, 2]


def test_of_two_hosts_that_hold_as_much_the_one_that_is_asked_less_gets_a_new_model() -> None:
    state = pool([model(name) for name in "abc"], [host("h1", files("a", rate=0.5)), host("h2", files("b"))])
    assert lie(state) == {"h1": ["a"], "h2": ["b", "c"]}


def test_one_model_does_not_move_to_where_it_would_weigh_as_much() -> None:
    assert actions(pool([model("a", 90)], [host("h1", files("a")), host("h2")])) == []


def uneven(*more: Copy, **changes: Any) -> PoolState:
    """Return a pool with six sleeping models on one host and two on the other, each of three quarters of a line."""
    names = [f"m{number}" for number in range(8)]
    hosts = [host("h1", *map(files, names[:6]), *more), host("h2", *map(files, names[6:]))]
    return pool([model(name, 75, **changes) for name in names], hosts)


def test_models_asleep_that_lie_too_close_together_are_spread_as_files_and_none_moves_twice() -> None:
    made = actions(uneven())
    assert [(move.because, move.source.name, move.host.name) for move in made if isinstance(move, Move)] == [
        (ActionCause.BALANCED, "h1", "h2")
    ] * len(made)
    assert len(made) == 2
    assert len({move.model for move in made}) == 2
    assert all(isinstance(move, Move) and move.level is Level.ON_DISK for move in made)
    assert "would take 450 B awake, those on pool/h2 150 B" in made[0].why


def test_nothing_moves_for_little_nor_soon_again_nor_what_is_more_than_files() -> None:
    names = [f"m{number}" for number in range(7)]
    small = [host("h1", *map(files, names[:5])), host("h2", *map(files, names[5:]))]
    assert actions(pool([model(name, 16) for name in names], small)) == []  # 80 and 32 of 100
    assert actions(uneven(moved=NOW - 599)) == []
    assert plan(uneven(moved=NOW - 599)).wait == pytest.approx(1)
    assert len(actions(uneven(moved=NOW - 601))) == 2
    images = [host("h1", *[image(name) for name in names[:6]], sleepers=1000), host("h2")]
    assert actions(pool([model(name) for name in names[:6]], images)) == []


def test_a_host_that_may_take_nothing_breaks_no_plan() -> None:
    models = [model(name, need) for name, need in (("a", 40), ("b", 40))]
    state = pool(models, [host("h1", files("a"), files("b"), line=0), host("h2")])
    moves = [action for action in actions(state) if isinstance(action, Move)]
    assert {(move.source.name, move.host.name) for move in moves} <= {("h1", "h2")}
    assert moves, "a copy on a host where it cannot wake moves"
