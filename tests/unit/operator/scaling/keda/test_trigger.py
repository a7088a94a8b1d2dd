"""The metadata of triggers, and errors about other metadata."""

from __future__ import annotations

import pytest

from plimsoll_operator.scaling.keda.trigger import ACTIVE_SECONDS, TARGET, Trigger, TriggerError, read_trigger
from plimsoll_operator.spec.identity import ObjectKey


def test_a_trigger_that_says_nothing_asks_for_the_model_of_the_scaled_objects_name() -> None:
    found = read_trigger("m", "team", {"scalerAddress": "plimsoll-scaler:8083", "unsafeSsl": "false"})
    assert found == Trigger(ObjectKey("team", "m"), TARGET, ACTIVE_SECONDS)


def test_a_trigger_that_says_all() -> None:
    said = {"model": "gemma", "target": "2.5", "activeSeconds": "30"}
    assert read_trigger("so", "team", said) == Trigger(ObjectKey("team", "gemma"), 2.5, 30.0)


@pytest.mark.parametrize(
    ("name", "namespace", "metadata", "words"),
    [
        ("", "team", {}, "no name or namespace of a ScaledObject"),
        ("so", "", {}, "no name or namespace of a ScaledObject"),
        ("so", "team", {"modle": "m"}, "'modle' in the trigger's metadata; known are activeSeconds, model, target"),
        ("so", "team", {"model": ""}, "'model' is empty"),
        ("so", "team", {"target": "0"}, "'target' must be a number above 0"),
        ("so", "team", {"target": "nan"}, "'target' must be a number above 0"),
        ("so", "team", {"target": "four"}, "not 'four'"),
        ("so", "team", {"activeSeconds": "-1"}, "'activeSeconds' must be"),
        ("so", "team", {"activeSeconds": "inf"}, "at most 86400"),
        ("so", "team", {"target": "9" * 5000}, "not '" + "9" * 64 + "'"),
    ],
)
def test_what_cannot_be_is_told(name: str, namespace: str, metadata: dict[str, str], words: str) -> None:
    with pytest.raises(TriggerError) as told:
        read_trigger(name, namespace, metadata)
    assert words in str(told.value)
    assert len(str(told.value)) < 300
