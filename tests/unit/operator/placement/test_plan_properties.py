"""For arbitrary pools, a plan does no harm and is complete."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_support.pools import pools
from placement_support.world import World

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.journal import Journal
from plimsoll_operator.placement.planner import build_plan, plan
from plimsoll_operator.placement.records.action import ActionCause, Move, Place
from plimsoll_operator.placement.records.level import Condition, Level, State
from plimsoll_operator.placement.records.pool import PoolState

ROUNDS = 12
sometimes = settings(max_examples=50, deadline=None)


@sometimes
@given(pools())
def test_no_step_of_a_plan_does_harm(state: PoolState) -> None:
    """World checks capacity, pins, requests in flight, minimum residency, duplicates, and hosts that accept nothing."""
    World(state).carry_out(plan(state))


@sometimes
@given(pools())
def test_a_second_plan_is_empty(state: PoolState) -> None:
    for _ in range(ROUNDS):
        made = plan(state)
        state = World(state).carry_out(made)
        if not made.truncated:
            break
    assert not plan(state).actions


@sometimes
@given(pools(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_decides_nothing(state: PoolState, random: Random) -> None:
    def shuffled(entries: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(random.sample(entries, len(entries)))

    hosts = [msgspec.structs.replace(host, models=shuffled(host.models)) for host in state.hosts]
    other = msgspec.structs.replace(
        state, models=shuffled(state.models), hosts=shuffled(tuple(hosts)), demand=shuffled(state.demand)
    )
    assert plan(state) == plan(state)
    assert msgspec.json.encode(plan(other)) == msgspec.json.encode(plan(state))


@sometimes
@given(pools())
def test_no_model_is_lost(state: PoolState) -> None:
    """A model with copies keeps one, and one without gets one or a refusal."""
    made = plan(state)
    world = World(state)
    after = world.carry_out(made)
    lies = {copy.model for host in after.hosts if host.condition is not Condition.LOST for copy in host.models}
    refused = {refusal.model for refusal in made.refusals}
    for model in state.models:
        assert model.stopped or model.key in lies | refused


@sometimes
@given(pools())
def test_nothing_moves_twice(state: PoolState) -> None:
    """Neither from the same host twice, nor from where this plan has placed it."""
    moved: Counter[tuple[ObjectKey, ObjectKey]] = Counter()
    put: set[tuple[ObjectKey, ObjectKey]] = set()
    for action in plan(state).actions:
        if isinstance(action, Move):
            assert (action.model, action.source) not in put
            moved[action.model, action.source] += 1
        if isinstance(action, Move | Place):
            put.add((action.model, action.host))
    assert max(moved.values(), default=1) == 1


@sometimes
@given(pools())
def test_the_ledgers_agree_with_their_copies_and_placements_with_what_comes_of_it(state: PoolState) -> None:
    made = build_plan(state, Journal())
    for ledger in made.index.ledgers.values():
        ledger.check_integrity()
    result = made.plan()
    world = World(state)
    after = world.carry_out(result)
    lies = {
        (copy.model, host.key)
        for host in after.hosts
        if host.condition is not Condition.LOST
        for copy in host.models
        if copy.model in world.models and not copy.going and copy.state != "Draining"
    }
    assert {(placement.model, placement.host) for placement in result.placements} == lies


@sometimes
@given(pools())
def test_a_state_survives_being_written_down(state: PoolState) -> None:
    assert msgspec.json.decode(msgspec.json.encode(state), type=PoolState) == state


@sometimes
@given(pools())
def test_only_sleeping_files_move_to_even_hosts_out_and_each_once(state: PoolState) -> None:
    lies = {(copy.model, host.key): copy for host in state.hosts for copy in host.models}
    moves = [one for one in plan(state).actions if isinstance(one, Move) and one.because is ActionCause.BALANCED]
    assert len({move.model for move in moves}) == len(moves)
    for move in moves:
        copy = lies[move.model, move.source]
        assert copy.state is State.ON_DISK
        assert not copy.active
        assert not copy.waiting
        assert move.level is Level.ON_DISK
        assert move.source != move.host
    # What went from a host never comes to it as well.
    assert not {move.source for move in moves} & {move.host for move in moves}
