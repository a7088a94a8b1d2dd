"""How much the record of served names holds, and its messages about problems."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_support.objects import EPOCH

from plimsoll_cluster.served_names.record import Kept, Record, format_record
from plimsoll_operator.controller.name_recorder import MOST_BYTES, MOST_NAMES, fit_record
from plimsoll_operator.controller.options import parse_options

ENDS = st.none() | st.integers(0, 5).map(lambda seconds: EPOCH + timedelta(seconds=seconds))
RECORDS = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.builds(Kept, st.sampled_from("xyz"), ENDS))


def size_of(record: Record) -> int:
    return sum(len(key) + len(text) for key, text in format_record(record).items())


@given(RECORDS, RECORDS, st.integers(0, 6), st.integers(0, 120))
def test_what_fits(wanted: Record, before: Record, names: int, size: int) -> None:
    fitting, left_out = fit_record(wanted, before, names, size)
    assert fitting.items() <= wanted.items()
    assert len(fitting) + left_out == len(wanted)
    assert len(fitting) <= names
    assert size_of(fitting) <= size
    if len(wanted) <= names and size_of(wanted) <= size:
        assert left_out == 0
    if any(kept.until is not None for kept in fitting.values()):
        assert all(name in fitting for name, kept in wanted.items() if kept.until is None), "claimed names come first"


def test_of_those_that_end_the_first_goes_first() -> None:
    wanted = {name: Kept("x", EPOCH + timedelta(seconds=end)) for end, name in enumerate("abc")}
    assert fit_record(wanted, wanted, 2)[0].keys() == {"b", "c"}


def test_a_name_that_serves_takes_the_place_of_one_that_ends() -> None:
    before = {"a": Kept("x"), "b": Kept("x", EPOCH)}
    assert fit_record({**before, "new": Kept("y")}, before, 2)[0].keys() == {"a", "new"}


def test_a_full_record_keeps_what_it_has() -> None:
    before = {"x": Kept("x"), "y": Kept("x")}
    assert fit_record({**before, "a": Kept("y")}, before, 2) == (before, 1)


def test_a_namespace_with_many_deleted_names_pushes_out_its_own() -> None:
    """Otherwise a tenant could create and delete many models to displace another's name, and take it."""
    late = EPOCH + timedelta(seconds=9)
    wanted = {f"n{number}": Kept("tenant", late) for number in range(50)} | {"chat": Kept("prod", EPOCH)}
    fitting, left_out = fit_record(wanted, wanted, 10)
    assert "chat" in fitting
    assert left_out == 41


def test_it_always_fits_in_a_config_map() -> None:
    """With names and namespaces of maximal length."""
    wanted = {f"{number:0128}": Kept(f"{number % 500:063}", EPOCH) for number in range(MOST_NAMES)}
    fitting, left_out = fit_record(wanted, {})
    assert left_out > 0
    assert MOST_BYTES * 0.99 < size_of(fitting) <= MOST_BYTES < 1 << 20
    short = {f"{number}": Kept("x") for number in range(MOST_NAMES + 1)}
    assert fit_record(short, {})[1] == 1


@pytest.mark.parametrize("text", ["-1", "1.5", "2592001"])
def test_a_grace_that_makes_no_sense(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    least = ["--runtime-image", "reg/rt:1", "--lease-namespace", "system"]
    assert parse_options([*least, "--name-grace-seconds", "2592000"]).name_grace == timedelta(days=30)
    with pytest.raises(SystemExit):
        parse_options([*least, "--name-grace-seconds", text])
    assert f"{text!r} is not a whole number of seconds from 0 to 2592000" in capsys.readouterr().err
