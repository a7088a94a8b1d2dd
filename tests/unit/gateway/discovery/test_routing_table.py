from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.discovery.routing_table import DuplicateModelError, Model, ObjectKey, Replica, build_table

NAMES = st.sampled_from(["a", "b", "c", "d"])
MODELS = st.builds(
    Model,
    key=st.builds(ObjectKey, NAMES, NAMES),
    served_names=st.lists(NAMES, unique=True, max_size=3).map(tuple),
    created=st.sampled_from([1.0, 2.0, 3.0]),
    message=st.just(""),
    replicas=st.just(()),
)
UNIQUE = st.lists(MODELS, unique_by=lambda model: model.key, max_size=8)


@given(UNIQUE)
def test_every_name_belongs_to_its_oldest_claim(models: list[Model]) -> None:
    table = build_table(models)
    table.check_integrity()
    assert set(table.models) == set(models)
    for name in "abcd":
        claims = [model for model in models if name in model.served_names]
        oldest = min(claims, key=lambda model: (model.created, model.key), default=None)
        assert table.find(name) == oldest


@given(UNIQUE, st.randoms())
def test_order_does_not_matter(models: list[Model], random: object) -> None:
    shuffled = list(models)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert build_table(shuffled) == build_table(models)


def test_a_model_twice_is_refused() -> None:
    model = Model(ObjectKey("a", "b"), ("b",), 1.0, "", ())
    with pytest.raises(DuplicateModelError, match="a/b"):
        build_table([model, model])


def test_integrity_is_checked() -> None:
    old = Model(ObjectKey("a", "old"), ("x",), 1.0, "", ())
    new = Model(ObjectKey("a", "new"), ("x",), 2.0, "", ())
    table = build_table([old, new])
    wrong = type(table)(table.models, {"x": new})
    with pytest.raises(AssertionError, match="oldest"):
        wrong.check_integrity()


def test_replicas_answer_only_to_the_names_they_were_started_with() -> None:
    old = Replica("1", "http://x", True, frozenset(["m"]))
    new = Replica("2", "http://y", True, frozenset(["m", "n"]))
    unready = Replica("3", "http://z", False)
    model = Model(ObjectKey("a", "m"), ("m", "n"), 1.0, "", (old, new, unready))
    assert model.ready_for("m") == (old, new)
    assert model.ready_for("n") == (new,)


def test_replicas_of_silent_nodes_are_asked_where_no_other_is_ready() -> None:
    ready = Replica("1", "http://x", True)
    unheard = Replica("2", "http://y", False, frozenset(["m"]), unheard=True)
    unready = Replica("3", "http://z", False)
    names = ("m", "n")
    assert Model(ObjectKey("a", "m"), names, 1.0, "", (unready, unheard, ready)).ready_for("m") == (ready,)
    alone = Model(ObjectKey("a", "m"), names, 1.0, "", (unready, unheard))
    assert alone.ready_for("m") == (unheard,)
    assert alone.ready_for("n") == ()
