"""Label selectors of namespaces with Kubernetes' semantics, over known and unknown labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_operator.spec.namespace_selector import NAMESPACE_LABEL, Labels, Requirement, Selector, read_selector

TEAM = Labels({NAMESPACE_LABEL: "team", "tier": "gold", "empty": ""})


def expression(key: str, operator: str, *values: str) -> dict[str, object]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("selector", "taken"),
    [
        ({}, True),
        ({"matchLabels": {"tier": "gold"}}, True),
        ({"matchLabels": {"tier": "silver"}}, False),
        ({"matchLabels": {"tier": "gold", "other": "x"}}, False),
        ({"matchLabels": {"empty": ""}}, True),
        ({"matchLabels": {"missing": ""}}, False),
        ({"matchExpressions": [expression("tier", "In", "silver", "gold")]}, True),
        ({"matchExpressions": [expression("missing", "In", "x")]}, False),
        ({"matchExpressions": [expression("tier", "NotIn", "gold")]}, False),
        ({"matchExpressions": [expression("missing", "NotIn", "gold")]}, True),
        ({"matchExpressions": [expression("empty", "Exists")]}, True),
        ({"matchExpressions": [expression("missing", "Exists")]}, False),
        ({"matchExpressions": [expression("missing", "DoesNotExist")]}, True),
        ({"matchExpressions": [expression("tier", "DoesNotExist")]}, False),
        ({"matchLabels": {"tier": "gold"}, "matchExpressions": [expression("tier", "NotIn", "gold")]}, False),
    ],
)
def test_a_selector_takes_what_kubernetes_would(selector: dict[str, object], taken: bool) -> None:
    assert read_selector(selector).takes(TEAM) is taken


def test_without_labels_to_see_a_namespaces_name_is_known_and_nothing_else() -> None:
    unseen = Labels.of_name("team")
    assert read_selector({"matchLabels": {NAMESPACE_LABEL: "team"}}).takes(unseen) is True
    assert read_selector({"matchLabels": {NAMESPACE_LABEL: "other"}}).takes(unseen) is False
    assert read_selector({}).takes(unseen) is True
    asks = read_selector({"matchLabels": {"tier": "gold", NAMESPACE_LABEL: "team"}})
    assert asks.takes(unseen) is None
    assert asks.unknown(unseen) == ("tier",)
    never = read_selector({"matchLabels": {"tier": "gold", NAMESPACE_LABEL: "other"}})
    assert never.takes(unseen) is False, "whatever its other labels are"


KEYS = st.sampled_from([NAMESPACE_LABEL, "a", "b"])
VALUES = st.sampled_from(["team", "x", "y"])
REQUIREMENTS = st.builds(
    Requirement,
    KEYS,
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.frozensets(VALUES, min_size=1),
)


@given(st.lists(REQUIREMENTS, max_size=4), st.dictionaries(st.sampled_from(["a", "b"]), VALUES))
def test_what_is_said_without_seeing_labels_is_never_wrong(asked: list[Requirement], others: dict[str, str]) -> None:
    selector = Selector(tuple(asked))
    said = selector.takes(Labels.of_name("team"))
    truth = selector.takes(Labels({NAMESPACE_LABEL: "team", **others}))
    assert truth is not None
    assert said in (None, truth)
    if said is None:
        assert set(selector.unknown(Labels.of_name("team"))) <= {"a", "b"}
