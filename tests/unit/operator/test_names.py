"""Of several objects that claim a name, the oldest has it; and whoever's fate changes is told."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from operator_support.objects import EPOCH, Json, model

from plimsoll_operator.identity import ObjectKey, key_of
from plimsoll_operator.names import NameRegistry
from plimsoll_operator.spec import read_spec, served_names

NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)
OBJECTS = st.builds(
    lambda name, age, names: model(
        name, created=EPOCH - timedelta(seconds=age), model={"source": "demo://x", "servedNames": names}
    ),
    st.sampled_from(["m1", "m2", "m3"]),
    st.integers(0, 2),
    NAMES,
)
STEPS = st.lists(OBJECTS | st.sampled_from(["m1", "m2", "m3"]), max_size=12)


def expected(items: dict[ObjectKey, Json], key: ObjectKey) -> dict[str, str]:
    """Who has each name of an object, other than itself."""
    found = {}
    for name in served_names(items[key]):
        claims = [(i["metadata"]["creationTimestamp"], k) for k, i in items.items() if name in served_names(i)]
        oldest = min(claims)[1]
        if oldest != key:
            found[name] = str(oldest)
    return found


@given(STEPS)
def test_who_has_which_name(steps: list[Json | str]) -> None:
    registry, items = NameRegistry(), dict[ObjectKey, Json]()
    for step in steps:
        before = {key: expected(items, key) for key in items}
        if isinstance(step, str):
            changed = ObjectKey("team", step)
            items.pop(changed, None)
            told = registry.forget(changed)
        else:
            changed = key_of(step)
            items[changed] = step
            told = registry.note(step)
            assert registry.note(step) == set()
        registry.check_integrity()
        after = {key: expected(items, key) for key in items}
        assert {k: dict(registry.holders(read_spec(i))) for k, i in items.items()} == after
        others = items.keys() & before.keys() - {changed}
        assert {key for key in others if before[key] != after[key]} <= told <= others
