"""The status of a model with two revisions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from operator_support.objects import EPOCH, spec_of
from operator_support.world import SimulatedPod, State, World, fits_of

from plimsoll_operator.build.pod_revision import user_part
from plimsoll_operator.canary.rule import begin, taken_back
from plimsoll_operator.canary.split import Sides, split_of
from plimsoll_operator.canary.state import Canary
from plimsoll_operator.canary.status import describe_split
from plimsoll_operator.planning.pods import ServiceState
from plimsoll_operator.spec.canary import read_canary_spec
from plimsoll_operator.status.conditions import LOADED, Condition
from plimsoll_operator.status.reasons import Reason
from plimsoll_operator.status.status import Fields, Rejections

TERMS = read_canary_spec({"steps": [{"weight": 50}]})
assert TERMS is not None
OLD, NEW = "hf://org/old", "hf://org/new"
STABLE = replace(spec_of(replicas=2), source=OLD)
PRESENT = replace(STABLE, source=NEW)
BEGUN = begin(user_part(PRESENT), user_part(STABLE), TERMS, EPOCH)


def told(canary: Canary, *pods: SimulatedPod) -> tuple[Fields, dict[str, Condition]]:
    """Return the fields, and the conditions by type."""
    assert TERMS is not None
    labels = f"{canary.revision}-i-1", f"{canary.stable}-i-1"
    sides = Sides(PRESENT, STABLE, *map(fits_of, labels))
    observed = World(list(pods), ServiceState.OURS, EPOCH, {}).observed()
    fields, conditions = describe_split(split_of(canary, TERMS, sides, observed), Rejections(), ())
    return fields, {condition.type: condition for condition in conditions}


def pod(name: str, revision: str, state: State = State.READY) -> SimulatedPod:
    return SimulatedPod(name, f"{revision}-i-1", state, EPOCH)


def test_a_canary_that_was_taken_back_speaks_of_the_source_that_serves() -> None:
    back = taken_back(BEGUN, "too many errors", EPOCH)
    fields, conditions = told(back, pod("a", back.stable), pod("b", back.stable))
    assert (conditions[LOADED].status, conditions[LOADED].reason) == (True, Reason.LOADED)
    assert conditions[LOADED].message == f"2 of 2 replicas have loaded {OLD}"
    assert fields["source"] == OLD


@pytest.mark.parametrize(("state", "ready", "loaded"), [(State.READY, 1, True), (State.LOADING, 0, False)])
def test_while_a_canary_is_tried_both_sources_are_counted(state: State, ready: int, loaded: bool) -> None:
    stable = [pod("a", BEGUN.stable), pod("b", BEGUN.stable)][: 1 if loaded else 2]
    fields, conditions = told(BEGUN, *stable, pod("c", BEGUN.revision, state))
    assert conditions[LOADED].status is loaded
    count = len(stable)
    assert conditions[LOADED].message == (
        f"{count} of {count} replicas have loaded {OLD}, {ready} of 1 replicas have loaded {NEW}"
    )
    assert fields["source"] == OLD
