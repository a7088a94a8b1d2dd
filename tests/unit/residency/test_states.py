"""The allowed state transitions between disk and device, and no others."""

from itertools import pairwise

import pytest

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.residency.states import State, TransitionError, check_transition

LIVES = (
    "Absent Fetching OnDisk Waking Resident Draining InHost Waking Resident Draining OnDisk Absent",
    "Absent Fetching Absent",
    "OnDisk Waking OnDisk",
    "InHost Waking InHost OnDisk",
    "Resident InHost",
    "Resident OnDisk",
    "Draining Resident",
)
LEGAL = {step for life in LIVES for step in pairwise(map(State, life.split()))}


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_transitions(before: State, after: State) -> None:
    if (before, after) in LEGAL | {(State.WAKING, State.IN_HOST), (State.DRAINING, State.ON_DISK)}:
        check_transition(before, after)
    else:
        with pytest.raises(TransitionError, match=f"cannot change from {before} to {after}"):
            check_transition(before, after)


def test_names() -> None:
    assert str(ModelName("team", "qwen-3.1")) == "team/qwen-3.1"
    assert ModelName.parse("team/qwen") == ("team", "qwen")


@pytest.mark.parametrize(
    "text", ["", "team", "/qwen", "team/", "Team/qwen", "team/qwen/x", "team/-x", "t/" + "x" * 254, "t/ä"]
)
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(UsageError, match="is invalid; use up to 253"):
        ModelName.parse(text)
