"""Single decisions, in the words in which people read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plimsoll_runtime.residency.ledger import Grant
from plimsoll_runtime.residency.planner.actions import Action, DropImage, Refuse, Resize, Resume, Sleep, Wait, Wake
from plimsoll_runtime.residency.planner.eviction import make_room
from plimsoll_runtime.residency.planner.plan import plan
from plimsoll_runtime.residency.planner.view import HostView, ModelView, Pressure
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.sizes import Seconds, Sizes
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.residency.states import Level, State

GIB = 2**30
NOW = 10_000.0
SIZES = Sizes(image=2 * GIB, weights=2 * GIB, workspace=GIB, kv_minimum=GIB, kv_useful=2 * GIB)
GRANT = Grant(2 * GIB, GIB, GIB)


def model(name: str, state: State = State.IN_HOST, **fields: Any) -> ModelView:
    asleep = state in (State.IN_HOST, State.ON_DISK)
    made = ModelView(
        ModelName("team", name),
        state,
        SIZES,
        Seconds(load=10.0, wake=4.0),
        since=NOW - 1000,
        grant=None if asleep else GRANT,
        image=0 if state is State.ON_DISK else 2 * GIB,
        kv_used=0,
    )
    return replace(made, **fields)


def wanted(name: str, **fields: Any) -> ModelView:
    return model(name, **({"waiting": 1, "asked": NOW, "frequency": 1.0} | fields))


def resident(name: str, **fields: Any) -> ModelView:
    return model(name, State.RESIDENT, **fields)


def host(*models: ModelView, line: int = 8 * GIB, **fields: Any) -> HostView:
    used = sum(m.grant.total for m in models if m.grant is not None)
    return replace(HostView(NOW, models, line, 0, line - used), **fields)


def actions(view: HostView) -> tuple[Action, ...]:
    return plan(view, Settings()).actions


def test_nobody_asks_and_nothing_happens() -> None:
    assert actions(host(resident("a"), model("b"), model("c", State.ON_DISK))) == ()


def test_what_fits_wakes_with_half_of_the_rest_for_its_kv_cache() -> None:
    (wake,) = actions(host(wanted("a"), line=5 * GIB))
    assert wake == Wake(ModelName("team", "a"), Grant(2 * GIB, GIB, GIB + GIB // 2), "woken for a request")


def test_the_idle_one_that_is_worth_less_gives_way() -> None:
    cold = resident("cold", frequency=0.8, last_used=NOW - 745)
    hot = resident("hot", frequency=40.0, last_used=NOW - 1)
    sleep, wait = actions(host(hot, cold, wanted("new", waiting=3, frequency=3.1)))
    assert isinstance(sleep, Sleep)
    assert (sleep.name.name, sleep.level) == ("cold", Level.IN_HOST)
    assert sleep.why == "evicted team/cold for team/new: value 0.8 against 3.1, 12 min idle, reload 4.0 s"
    assert isinstance(wait, Wait)


def test_unload_before_load() -> None:
    """Nothing wakes before the memory for it is free."""
    view = host(model("going", State.DRAINING, active=1), resident("stays"), wanted("new"))
    assert [type(action) for action in actions(view)] == [Wait]


def test_the_churn_guard_keeps_what_is_worth_more_until_the_turn_comes() -> None:
    hot = (resident("hot", frequency=40.0), resident("hotter", frequency=90.0))
    found = plan(host(*hot, wanted("cold", asked=NOW - 2)), Settings())
    # A swap costs 4 s of waking, and 4 s more for the model that must come back.
    assert found.actions == (
        Wait(ModelName("team", "cold"), "it can be woken in 6.0 s, in place of team/hot", NOW + 6),
    )
    assert found.look_at == NOW + 6
    from_disk = wanted("cold", asked=NOW - 2, seconds=Seconds(load=100.0, wake=4.0), state=State.ON_DISK, image=0)
    assert plan(host(*hot, from_disk), Settings()).look_at == NOW + 28
    sleep, _ = actions(host(*hot, wanted("cold", asked=NOW - 8)))
    assert isinstance(sleep, Sleep)
    assert sleep.why == (
        "evicted team/hot: its service slice is over, and team/cold has waited to wake for 8.0 s; awake for 17 min, "
        "reload 4.0 s"
    )


def test_a_turn_waits_for_the_slice_of_whom_it_ends() -> None:
    fresh = (resident("a", frequency=9.0, since=NOW - 12), resident("b", frequency=9.0, since=NOW - 5, active=2))
    found = plan(host(*fresh, wanted("cold", asked=NOW - 100)), Settings(minimum_residency=30.0))
    assert found.actions == (Wait(ModelName("team", "cold"), "it can be woken in 18 s, in place of team/a", NOW + 18),)
    assert found.look_at == NOW + 18


@pytest.mark.parametrize(("wake", "slice_"), [(1.0, 10.0), (6.0, 12.0), (14.0, 28.0), (40.0, 30.0)])
def test_a_slice_is_twice_what_it_takes_to_come_back_within_bounds(wake: float, slice_: float) -> None:
    """At least the minimum residency, at most the service slice."""
    hot = resident("hot", frequency=40.0, since=NOW - 5, seconds=Seconds(load=10.0, wake=wake))
    found = plan(host(hot, wanted("cold", asked=NOW - 100), line=4 * GIB), Settings())
    (wait,) = found.actions
    assert isinstance(wait, Wait)
    assert wait.until == NOW - 5 + slice_


@pytest.mark.parametrize(
    "fields", [{"pinned": True}, {"since": NOW - 9}, {"active": 1, "since": NOW - 29.5}, {"priority": 1}]
)
def test_who_is_never_evicted_at_once(fields: dict[str, Any]) -> None:
    view = host(resident("a", **fields), wanted("new", waiting=9, frequency=900.0), line=4 * GIB)
    assert not [action for action in actions(view) if isinstance(action, Sleep)]


def test_a_lower_priority_gives_way_whatever_it_is_worth() -> None:
    view = host(resident("a", frequency=99.0), wanted("new", priority=1), line=4 * GIB)
    assert isinstance(actions(view)[0], Sleep)


def test_who_waits_longest_comes_first_and_keeps_his_room() -> None:
    """Another model may pass only into memory that the first one leaves."""
    small = Sizes(GIB, GIB, 0, 0, 0)
    first = wanted("first", asked=NOW - 5)
    busy = resident("busy", active=1, frequency=50.0, since=NOW - 1)
    view = host(busy, first, wanted("second", sizes=small), line=6 * GIB)
    assert [action.name.name for action in actions(view) if isinstance(action, Wake)] == ["second"]
    view = host(busy, first, wanted("second"), line=7 * GIB)
    assert not [action for action in actions(view) if isinstance(action, Wake)]


def test_the_order_is_that_of_asking_whatever_they_are_called() -> None:
    (wake, wait) = actions(host(wanted("b", asked=NOW - 5), wanted("a", asked=NOW - 1), line=4 * GIB))
    assert isinstance(wake, Wake)
    assert (wake.name.name, type(wait)) == ("b", Wait)


def test_nobody_passes_one_whose_room_is_not_in_sight() -> None:
    """Both resident models are still waking; free memory is kept for the first waiting model."""
    waking = [model(name, State.WAKING) for name in ("x", "y")]
    small = wanted("small", asked=NOW, sizes=Sizes(GIB, GIB, 0, 0, 0))
    assert [type(action) for action in actions(host(*waking, wanted("first", asked=NOW - 5), small, line=9 * GIB))] == [
        Wait,
        Wait,
    ]
    assert isinstance(actions(host(*waking, small, line=9 * GIB))[0], Wake)


def test_kv_caches_shrink_before_models_go() -> None:
    rich = resident("rich", grant=GRANT.with_kv(3 * GIB), frequency=50.0)
    resize, _ = actions(host(rich, wanted("new"), line=8 * GIB))
    assert resize == Resize(rich.name, GIB, "team/rich's KV cache shrinks for team/new")


def test_a_kv_cache_in_use_is_not_taken() -> None:
    rich = resident("rich", grant=GRANT.with_kv(3 * GIB), kv_used=2 * GIB, pinned=True)
    assert [type(action) for action in actions(host(rich, wanted("new"), line=8 * GIB))] == [Wait]


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    (refuse,) = actions(host(resident("kept", pinned=True), wanted("new"), line=7 * GIB, reserved=GIB // 2))
    assert isinstance(refuse, Refuse)
    assert refuse.code == "does_not_fit"
    assert refuse.why.startswith(
        "team/new needs 4.00 GiB (weights 2.00 GiB, workspace 1.00 GiB, KV cache 1.00 GiB), but of the "
        "7.00 GiB that may be granted (--line) the runtime itself takes 512.0 MiB and 4.00 GiB pinned models; "
        "give the pod more memory"
    )


def test_a_failure_is_not_tried_again_at_once() -> None:
    found = plan(host(wanted("new", retry_at=NOW + 5)), Settings())
    assert [type(action) for action in found.actions] == [Wait]
    assert found.look_at == NOW + 5


def test_nothing_is_loaded_under_full_pressure_and_one_thing_goes() -> None:
    refuse, drop = actions(host(wanted("new"), model("asleep"), resident("idle"), pressure=Pressure.FULL, relieve=True))
    assert isinstance(refuse, Refuse)
    assert refuse.code == "memory_pressure"
    assert drop == DropImage(ModelName("team", "asleep"), 0.0, "dropped team/asleep's image: memory pressure is full")


def test_under_some_pressure_images_go_first_then_spare_kv_then_idle_models() -> None:
    pressed: dict[str, Any] = {"pressure": Pressure.SOME, "relieve": True, "line": 16 * GIB}
    rich, idle = resident("rich", grant=GRANT.with_kv(2 * GIB), active=1), resident("idle", last_used=NOW - 60)
    assert isinstance(actions(host(rich, idle, model("asleep"), **pressed))[0], DropImage)
    assert isinstance(actions(host(rich, idle, **pressed))[0], Resize)
    (sleep,) = actions(host(idle, **pressed))
    assert sleep == Sleep(idle.name, Level.ON_DISK, 0.0, "evicted team/idle: memory pressure is some, 60 s idle")
    assert actions(host(idle, pressure=Pressure.SOME, relieve=False)) == ()


def test_a_runtime_that_grew_over_the_line_makes_models_give_way() -> None:
    view = host(resident("a", active=1), resident("b"), line=8 * GIB, free=-GIB, reserved=GIB)
    (sleep,) = actions(view)
    assert isinstance(sleep, Sleep)
    assert sleep.name.name == "b"


def test_who_drains_for_nobody_goes_on() -> None:
    going = model("going", State.DRAINING, active=1, yielding=True)
    (resume,) = actions(host(going))
    assert isinstance(resume, Resume)
    assert actions(host(replace(going, yielding=False))) == ()
    assert not [a for a in actions(host(going, wanted("new"), line=4 * GIB)) if isinstance(a, Resume)]


def test_rhythm_wakes_into_free_memory_only() -> None:
    soon = model("soon", due=NOW + 8)
    (wake,) = actions(host(soon))
    assert isinstance(wake, Wake)
    assert wake.why == "woken into free memory: a request is predicted in 8.0 s"
    assert actions(host(soon, resident("idle"), line=7 * GIB)) == ()
    assert plan(host(replace(soon, due=NOW + 60)), Settings()).look_at == NOW + 60 - 4 - 5
    assert actions(host(replace(soon, due=NOW - 31))) == ()


def test_an_image_is_filled_through_free_memory_only() -> None:
    image = model("image", State.ON_DISK, fill=True)
    assert isinstance(actions(host(image))[0], Wake)
    assert actions(host(image, resident("idle"), line=7 * GIB)) == ()


def test_a_full_kv_cache_grows_into_half_of_what_is_free() -> None:
    full = resident("full", kv_used=int(0.8 * GIB), active=3)
    (resize,) = actions(host(full, line=5 * GIB))
    assert resize == Resize(full.name, GIB + GIB // 2, "team/full's KV cache grows: 80% of it is in use")
    assert actions(host(replace(full, kv_used=GIB // 2), line=5 * GIB)) == ()


def test_images_of_lesser_value_give_way_to_one_that_goes_to_sleep() -> None:
    comer = model("comer", frequency=5.0)
    cheap, dear = model("cheap", frequency=1.0, last_used=NOW - 400), model("dear", frequency=50.0)
    (drop,) = make_room(host(cheap, dear), comer, 2 * GIB, 0) or ()
    assert drop.why == "dropped team/cheap's image for team/comer's: value 5 against 25, 7 min idle, reload 14 s"
    assert make_room(host(dear), comer, 2 * GIB, 0) is None
    assert make_room(host(dear), comer, 2 * GIB, 2 * GIB) == ()
    assert make_room(host(replace(cheap, asked=NOW)), comer, 2 * GIB, 0) is None
