"""Reports that cannot be true, or are older than accepted ones, are recorded as trouble and not used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from operator_support.stub_host import MIB, StubHost, StubModel

from plimsoll_operator.pools.hosts.host_registry import contradiction
from plimsoll_operator.pools.hosts.report import Report
from plimsoll_operator.spec.identity import ObjectKey

NOW = 1767225600.0
NAMES = "abc"
SPEC = {"revision": "r", "servedNames": [], "pinned": False, "weight": 1, "priority": 0}


def report(states: Mapping[str, str] | None = None, **changes: Any) -> Report:
    """Return the report of a host with models of 100 MiB in these states, and memory for ten of them."""
    found = {"a": "Resident", "b": "InHost"} if states is None else states
    models = {ObjectKey("team", name): StubModel(SPEC, state, NOW - 60) for name, state in found.items()}
    return replace(StubHost(sequence=7, now=NOW - 10, models=models).report(), **changes)


TRUE = report()
LIES: dict[str, Callable[[Report], Report]] = {
    "its sequence": lambda told: replace(told, sequence=told.sequence - 1),
    "its time is before": lambda told: replace(told, time=told.time - 2),
    "in the future: set the clock": lambda told: replace(told, time=NOW + 301),
    "is above its capacity of": lambda told: replace(told, device=replace(told.device, line=1025 * MIB)),
    "its models' grants": lambda told: replace(
        told, models=(*told.models, replace(TRUE.models[0], name="stranger", weights=1025 * MIB))
    ),
    "its images": lambda told: replace(told, sleepers=replace(told.sleepers, used=513 * MIB)),
    "it names a model twice": lambda told: replace(
        told, models=(replace(TRUE.models[1], name="twin"), replace(TRUE.models[1], name="twin"), *told.models)
    ),
}


def test_a_good_report_is_taken() -> None:
    assert contradiction(None, TRUE, NOW) is None
    assert contradiction(TRUE, report({}, sequence=8, time=NOW), NOW) is None


@pytest.mark.parametrize("told", LIES)
def test_a_bad_one_is_told(told: str) -> None:
    assert told in str(contradiction(TRUE, LIES[told](TRUE), NOW))


@pytest.mark.parametrize("told", list(LIES)[2:])
def test_it_needs_none_before_it_to_be_known_as_bad(told: str) -> None:
    assert told in str(contradiction(None, LIES[told](TRUE), NOW))


def test_a_new_process_begins_to_count_anew() -> None:
    assert contradiction(TRUE, report({}, instance="next", sequence=0, time=NOW - 100), NOW) is None


def test_numbers_alone_do_not_raise_the_sequence() -> None:
    busier = replace(TRUE, models=(replace(TRUE.models[0], rate=2.0, active=3), *TRUE.models[1:]))
    assert contradiction(TRUE, busier, NOW) is None


@given(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["Resident", "InHost", "OnDisk", "Waking"])),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["Resident", "InHost", "Draining"])),
    st.integers(0, 3),
    st.floats(0, 60),
    st.sampled_from(sorted(LIES)),
)
def test_what_hosts_truly_say_is_never_refused_and_a_lie_always(
    before: dict[str, str], after: dict[str, str], steps: int, seconds: float, told: str
) -> None:
    first, second = report(before), report(after, sequence=7 + steps, time=NOW - 10 + seconds)
    assert contradiction(first, second, NOW + 50) is None
    lie = LIES[told](replace(second, sequence=7, time=NOW - 10))
    assert contradiction(first, lie, NOW) is not None
