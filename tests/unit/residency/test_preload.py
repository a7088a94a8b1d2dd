"""Predicted wakes use free memory only: no model is evicted, shrunk, delayed or refused for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from plimsoll_runtime.residency.ledger import Grant
from plimsoll_runtime.residency.planner.actions import Action, Resize, Wake
from plimsoll_runtime.residency.planner.plan import plan
from plimsoll_runtime.residency.planner.view import HostView, ModelView, Pressure
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.sizes import Seconds, Sizes
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.residency.states import ASLEEP, State

NOW = 10_000.0
times = st.sampled_from([NOW - 40, NOW - 1, NOW, NOW + 5, NOW + 600])


@st.composite
def models(draw: st.DrawFn, number: int) -> ModelView:
    weights, workspace, least = draw(st.integers(1, 6)), draw(st.integers(0, 2)), draw(st.integers(1, 2))
    sizes = Sizes(weights, weights, workspace, least, least + draw(st.integers(0, 8)))
    state = draw(st.sampled_from([State.ON_DISK, State.IN_HOST, State.WAKING, State.RESIDENT, State.DRAINING]))
    asleep = state in ASLEEP
    kv = sizes.kv_minimum + draw(st.integers(0, 3))
    return ModelView(
        name=ModelName("team", f"m{number}"),
        state=state,
        sizes=sizes,
        seconds=Seconds(draw(st.floats(0.1, 20)), draw(st.floats(0.1, 2))),
        since=NOW - draw(st.sampled_from([1, 31, 1000])),
        grant=None if asleep else Grant(weights, workspace, kv),
        image=weights if state is not State.ON_DISK else 0,
        frequency=draw(st.floats(0, 10)),
        last_used=NOW - draw(st.floats(0, 1000)),
        pinned=draw(st.integers(0, 9)) == 0,
        active=draw(st.integers(0, 1)) if state is State.RESIDENT else 0,
        asked=draw(st.none() | st.just(NOW - 40)) if asleep else None,
        kv_used=draw(st.integers(0, kv)),
        due=draw(st.none() | times),
    )


@st.composite
def views(draw: st.DrawFn) -> HostView:
    made = tuple(draw(models(number)) for number in range(draw(st.integers(1, 6))))
    free = draw(st.integers(0, 12))
    granted = sum(model.grant.total for model in made if model.grant is not None)
    return HostView(
        now=NOW, models=made, line=granted + free, reserved=0, free=free, pressure=draw(st.sampled_from(list(Pressure)))
    )


def foretold(view: HostView, action: Action) -> bool:
    """Return whether an action wakes a model without a request."""
    return isinstance(action, Wake) and next(m for m in view.models if m.name == action.name).asked is None


def for_others(view: HostView, actions: tuple[Action, ...]) -> list[Action]:
    """Return the actions for requested models, except growth of KV caches, which uses free memory too."""
    grants = {model.name: model.grant for model in view.models}

    def grows(action: Action) -> bool:
        grant = grants[action.name]
        return isinstance(action, Resize) and grant is not None and action.kv > grant.kv

    return [action for action in actions if not foretold(view, action) and not grows(action)]


@pytest.mark.long
@hypothesis_settings(max_examples=300, deadline=None)
@given(views())
def test_a_guess_takes_nothing_from_anybody(view: HostView) -> None:
    blind = replace(view, models=tuple(replace(model, due=None) for model in view.models))
    seeing = plan(view, Settings())
    event(f"foretold wakes: {sum(foretold(view, action) for action in seeing.actions)}")
    assert for_others(view, seeing.actions) == for_others(view, plan(blind, Settings()).actions)
    assert sum(action.grant.total for action in seeing.actions if isinstance(action, Wake)) <= view.free
    assert view.pressure is Pressure.NONE or not any(foretold(view, action) for action in seeing.actions)


def test_what_fits_exactly_is_woken_and_what_lacks_a_byte_is_not() -> None:
    sizes = Sizes(4, 4, 1, 1, 8)
    soon = ModelView(ModelName("team", "soon"), State.ON_DISK, sizes, Seconds(1.0, 1.0), since=0.0, due=NOW)
    for free, expected in ((6, 1), (5, 0)):
        view = HostView(now=NOW, models=(soon,), line=10, reserved=10 - free, free=free)
        assert len(plan(view, Settings()).actions) == expected
