"""Capacity of a model by one name and by several, while its replicas come, go and change their names."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.admission.capacity import HEADROOM, Capacity
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, TableStore, build_table
from plimsoll_gateway.routing.loads import UNKNOWN_SLOTS
from plimsoll_gateway.routing.pick import Picker


def taken(replicas: int) -> int:
    return math.ceil(HEADROOM * UNKNOWN_SLOTS * replicas)


def replica(number: int, names: str, *, ready: bool = True) -> Replica:
    return Replica(f"r{number}", f"http://198.18.0.{number}:8000", ready, frozenset(names))


def capacity(*replicas: Replica, scales_to: int = 0) -> Capacity:
    """Return the capacity of a model with the names a and b."""
    store = TableStore()
    found = Capacity(store, Picker())
    model = Model(ObjectKey("ns", "m"), ("a", "b"), 1.0, "", replicas, scales_to=scales_to)
    store.replace(build_table([model]))
    return found


@pytest.mark.parametrize(
    ("replicas", "by_a", "by_b", "by_both"),
    [
        ([replica(1, "ab"), replica(2, "ab")], 2, 2, 2),
        ([replica(1, "a"), replica(2, "ab")], 2, 1, 2),
        ([replica(1, "a"), replica(2, "b")], 1, 1, 2),
        ([replica(1, "a"), replica(2, "b", ready=False)], 1, 0, 1),
    ],
)
def test_by_two_names_it_takes_what_the_replicas_of_either_do(
    replicas: list[Replica], by_a: int, by_b: int, by_both: int
) -> None:
    found = capacity(*replicas, scales_to=3)
    assert [found.now(name) for name in "ab"] == [taken(by_a), taken(by_b)]
    assert found.together("ab") == found.together(["b", "a", "nobody's"]) == taken(by_both)


@pytest.mark.parametrize(("scales_to", "now"), [(2, 0), (0, None)])
def test_without_replicas_it_takes_nothing_yet_or_never(scales_to: int, now: int | None) -> None:
    found = capacity(replica(1, "ab", ready=False), scales_to=scales_to)
    assert (found.now("a"), found.together("ab")) == (now, 0)
    assert (found.now("nobody's"), found.together(["nobody's"])) == (None, 0)


NUMBERS = st.integers(1, 3)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("show"), st.lists(st.tuples(NUMBERS, st.booleans()), unique_by=lambda one: one[0])),
            st.tuples(st.just("tell"), st.tuples(NUMBERS, st.integers(1, 3))),
        ),
        max_size=12,
    )
)
def test_what_is_remembered_is_what_would_be_found_anew(steps: list[tuple[str, Any]]) -> None:
    store, picker = TableStore(), Picker()
    remembering = Capacity(store, picker)
    model = Model(ObjectKey("ns", "m"), ("a", "b"), 1.0, "", ())
    for what, told in steps:
        if what == "show":
            model = replace(model, replicas=tuple(replica(number, "ab", ready=ready) for number, ready in told))
            store.replace(build_table([model]))
            picker.loads.keep({one.id for one in model.replicas})
        else:
            number, slots = told
            picker.loads.heard(f"r{number}", b"running=0, waiting=0, slots=%d, kv=0.00" % slots, 0)
        anew = Capacity(store, picker)
        for capacity in (remembering, remembering, anew):
            assert capacity.places(model) == anew.places(model)
            assert capacity.now("a") == anew.now("a")
            assert capacity.together("ab") == anew.together("ab")
    ready = [one for one in model.replicas if one.ready]
    assert model.ready_for("a") == model.ready_replicas == tuple(ready)
