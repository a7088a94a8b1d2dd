"""Random requests: no plan does harm, and every model gets its turn in bounded time."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from plimsoll_runtime.residency.planner.actions import Action, DropImage, Plan, Refuse, Resize, Sleep, Wake
from plimsoll_runtime.residency.planner.plan import plan
from plimsoll_runtime.residency.planner.view import HostView, Pressure
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.sizes import Seconds, Sizes
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.residency.states import ASLEEP, State
from residency.world import STOP_SECONDS, Model, World, memory_of

LONGEST_ANSWER = 40.0
ROUNDING = 1e-6

sizes = st.builds(
    lambda image, private, workspace, least, more: Sizes(image, image + private, workspace, least, least + more),
    st.integers(1, 8),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(1, 3),
    st.integers(0, 20),
)
models = st.lists(
    st.tuples(
        sizes, st.floats(0.1, 20), st.sampled_from([0.1, 1, 1, 10]), st.sampled_from([0, 0, 0, 5]), st.integers(0, 9)
    ),
    min_size=1,
    max_size=6,
)
requests = st.lists(
    st.tuples(st.integers(0, 5), st.floats(0, 300), st.floats(0.1, LONGEST_ANSWER), st.none() | st.floats(0, 100)),
    max_size=40,
)
settings = st.builds(
    Settings, minimum_residency=st.sampled_from([0, 5, 30]), service_slice=st.sampled_from([0, 10, 60]),
    patience=st.sampled_from([0, 10, 30]),
)  # fmt: skip


def shuffled(view: HostView, seed: int) -> HostView:
    order = list(view.models)
    random.Random(seed).shuffle(order)
    return replace(view, models=tuple(order))


def repeatable(view: HostView, how: Settings) -> Plan:
    """Return a plan, after checking that equal views give equal plans."""
    first = plan(view, how)
    assert plan(view, how) == first
    assert plan(shuffled(view, 7), how) == first
    return first


class Watch:
    """Checks each action against the view that it was planned on."""

    def __init__(self, how: Settings) -> None:
        self.how = how
        self.granted = 0
        self.view: HostView | None = None

    def __call__(self, view: HostView, action: Action) -> None:
        if view is not self.view:
            self.view, self.granted = view, 0
        model = next(m for m in view.models if m.name == action.name)
        if isinstance(action, Wake):
            assert model.state in ASLEEP
            assert action.grant.total >= model.sizes.least
            assert action.grant.kv <= max(model.sizes.kv_useful, model.sizes.kv_minimum)
            self.granted += action.grant.total
            assert self.granted <= view.free
            assert view.pressure is not Pressure.FULL
        elif isinstance(action, Sleep):
            age = view.now - model.since + ROUNDING
            assert model.state is State.RESIDENT
            assert not model.pinned
            assert age >= self.how.minimum_residency
            assert model.active == 0 or age >= min(self.how.service_slice, 2 * model.reload_seconds)
        elif isinstance(action, DropImage):
            assert model.state is State.IN_HOST
            assert model.asked is None
        elif isinstance(action, Resize):
            assert model.grant is not None
            assert model.kv_wanted is None
            assert max(model.sizes.kv_minimum, model.kv_used) <= action.kv <= model.sizes.kv_useful
            self.granted += max(0, action.kv - model.grant.kv)
            assert self.granted <= max(0, view.free)
        elif isinstance(action, Refuse):
            pinned = sum(m.sizes.least for m in view.models if m.pinned and m.grant and m.name != model.name)
            assert model.sizes.least + pinned + view.reserved > view.line or view.pressure is Pressure.FULL


@hypothesis_settings(max_examples=120, deadline=None)
@given(models, requests, settings, st.integers(6, 24), st.integers(0, 12), st.booleans(), st.integers(-1, 5))
def test_everybody_is_served_and_nobody_harmed(
    made: list[tuple[Sizes, float, float, int, int]],
    asked: list[tuple[int, float, float, float | None]],
    how: Settings,
    line: int,
    sleepers: int,
    shared: bool,
    pinned: int,
) -> None:
    world = World(
        [
            Model(
                ModelName("team", f"m{i}"),
                size,
                Seconds(seconds, seconds / 4),
                weight,
                priority,
                pinned=i == pinned,
            )
            for i, (size, seconds, weight, priority, _) in enumerate(made)
        ],
        memory_of(line, sleepers, shared=shared),
        how,
        repeatable,
    )
    world.on_action = Watch(how)
    names = list(world.models)
    came = []

    def ask(name: ModelName, seconds: float, patience: float | None) -> None:
        request = world.arrive(name, seconds)
        came.append(request)
        if patience is not None:
            world.at(world.now + patience, lambda: world.give_up(name, request))

    for which, when, seconds, patience in asked:
        name = names[which % len(names)]
        world.at(when, partial(ask, name, seconds, patience))
    world.run()

    cancelled = sum(request.given_up for request in came)
    assert len(came) == len(asked)
    assert len(world.waits) + cancelled + world.refused == len(came)
    assert all(not model.waiting and not model.active for model in world.models.values())
    loading = max(model.seconds.from_disk for model in world.models.values())
    one = max(how.service_slice, how.minimum_residency) + how.patience + LONGEST_ANSWER + loading + 2 * STOP_SECONDS
    assert max(world.waits, default=0.0) <= len(names) * one + ROUNDING


@pytest.mark.long
@hypothesis_settings(max_examples=60, deadline=None)
@given(models, st.integers(8, 24), st.integers(0, 2**32))
def test_swaps_are_bounded_however_many_ask(
    made: list[tuple[Sizes, float, float, int, int]], line: int, seed: int
) -> None:
    """With requests to all models all the time, no model wakes more often than once in a slice."""
    how = Settings(minimum_residency=10.0, service_slice=20.0, patience=5.0)
    world = World(
        [
            Model(ModelName("team", f"m{i}"), size, Seconds(seconds, seconds / 4), weight, priority)
            for i, (size, seconds, weight, priority, _) in enumerate(made)
        ],
        memory_of(line, 100),
        how,
        plan,
    )

    def ask(name: ModelName) -> None:
        world.arrive(name, 1.0)

    rng = random.Random(seed)
    end = 600.0
    for step in range(600):
        name = rng.choice(list(world.models))
        world.at(float(step), partial(ask, name))
    woken: dict[ModelName, list[float]] = {}

    def note(view: HostView, action: Action) -> None:
        if isinstance(action, Wake):
            woken.setdefault(action.name, []).append(view.now)

    world.on_action = note
    world.run(until=end)
    for times in woken.values():
        assert all(after - before + ROUNDING >= how.minimum_residency for before, after in pairwise(times))
        assert len(times) <= 1 + end / how.minimum_residency
