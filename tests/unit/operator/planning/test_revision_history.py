"""Which revisions are kept: those in use, the present one on top, and a bounded number of others."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_operator.build.controller_revision import Revision
from plimsoll_operator.planning.revision_history import CreateRevision, ForgetRevision, StoreRevision, plan_history


def revision(label: str, number: int = 0, mark: str = "") -> Revision:
    return Revision(f"m-{label}", f"uid-{label}", label, number, b"{}", mark)


def test_the_first_is_stored() -> None:
    (action,) = plan_history([], revision("a"), set(), 10)
    assert action == CreateRevision(revision("a", 1), "it is new")


def test_a_new_one_with_a_mark_is_applied_so_that_the_mark_can_go_again() -> None:
    (action,) = plan_history([revision("b", 4)], revision("a", mark="taken back"), set(), 10)
    assert action == StoreRevision(revision("a", 5, "taken back"), "it is new")


def test_who_goes_back_finds_the_old_one_again_without_its_mark() -> None:
    known = [revision("a", 1, mark="taken back"), revision("b", 2)]
    (action,) = plan_history(known, revision("a"), set(), 10)
    assert isinstance(action, StoreRevision)
    assert action.revision == revision("a", 3)
    assert plan_history([revision("a", 3), revision("b", 2)], revision("a"), set(), 10) == ()


def test_what_is_in_use_is_kept_beyond_the_limit() -> None:
    known = [revision(label, number) for number, label in enumerate("abcd", 1)]
    assert plan_history(known, revision("d"), {"a"}, 1) == (ForgetRevision("m-b", "uid-b"),)
    assert len(plan_history(known, revision("d"), set(), 0)) == 3


LABELS = st.sampled_from("abcdef")


@given(st.lists(LABELS, min_size=1, max_size=30), st.sets(LABELS, max_size=2), st.integers(0, 4))
def test_any_story_of_specs_keeps_the_latest(story: list[str], needed: set[str], limit: int) -> None:
    known: dict[str, Revision] = {}
    for label in story:
        for action in plan_history(list(known.values()), revision(label), needed, limit):
            if isinstance(action, CreateRevision):
                assert action.revision.name not in known
            if isinstance(action, CreateRevision | StoreRevision):
                known[action.revision.name] = replace(action.revision, uid=f"uid-{action.revision.label}")
            else:
                assert known.pop(action.name).uid == action.uid
        assert plan_history(list(known.values()), revision(label), needed, limit) == ()
        assert max(known.values(), key=lambda r: r.number).label == label
        assert len({r.number for r in known.values()}) == len(known)
        free = [r for r in known.values() if r.label != label and r.label not in needed]
        assert len(free) <= limit
    others = list(dict.fromkeys(label for label in reversed(story) if label != story[-1] and label not in needed))
    if not needed:
        assert {r.label for r in known.values()} == {story[-1], *others[:limit]}
