"""Declarations of options: defaults from fields, valid values, and parsing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.option import Option, check_options, declared, fields_of, option, options_of
from plimsoll_runtime.utils.option_values import LIMIT, OptionError, amount_text

LIKE = Option(("serve",), "g")


@dataclass(frozen=True)
class Inner:
    folder: Path = field(metadata=declared("a folder", LIKE, flag="--dir"))
    size: int = option(2**30, "bytes", LIKE, unit="bytes", flag="--max-*")


@dataclass(frozen=True)
class Outer:
    plain: str
    max_rows: int | None = option(None, "rows", LIKE, maximum=9, deployment="runtime.*")
    kind: Literal["a", "b"] = option("a", "kinds", LIKE)
    names: tuple[str, ...] = option((), "names", LIKE, variable="NAMES")
    on: bool = option(False, "switch", LIKE, flag="", variable="ON")
    seconds: float = option(2.5, "time", LIKE, unit="seconds")
    share: float = option(0.5, "part", LIKE, unit="share")
    block: int = option(8, "block", LIKE, choices=(8, 16))
    count: int = option(1, "count", LIKE)
    inner: Inner | None = None
    more: dict[str, Any] = field(default_factory=dict)


OPTIONS = {option.name: option for option in options_of(Outer)}


def test_a_field_gives_name_type_and_default() -> None:
    assert [*fields_of(Outer)] == ["max_rows", "kind", "names", "on", "seconds", "share", "block", "count", "inner"]
    assert fields_of(Outer)["inner"] is Inner
    rows = OPTIONS["max_rows"]
    assert (rows.flag, rows.camel, rows.kind, rows.default) == ("--max-rows", "maxRows", int, None)
    assert (rows.minimum, rows.maximum, rows.deployment) == (1, 9, "runtime.maxRows")
    assert OPTIONS["kind"].choices == ("a", "b")
    assert OPTIONS["names"].repeats
    assert (OPTIONS["folder"].required, OPTIONS["size"].required) == (True, False)
    assert (OPTIONS["size"].minimum, OPTIONS["size"].flag) == (0, "--max-size")
    bounds = {name: (OPTIONS[name].minimum, OPTIONS[name].maximum) for name in ("count", "size", "seconds", "block")}
    assert bounds == {"count": (1, LIMIT), "size": (0, None), "seconds": (0, None), "block": (1, None)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("max_rows", ""),
        ("kind", "a"),
        ("names", ""),
        ("on", ""),
        ("seconds", "2.5"),
        ("share", "50%"),
        ("size", "1GiB"),
    ],
)
def test_the_default_as_a_text(name: str, text: str) -> None:
    assert OPTIONS[name].usual_text == text


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("max_rows", "9", 9),
        ("folder", "/d", Path("/d")),
        ("size", "1KiB", 1024),
        ("share", "25%", 0.25),
        ("on", "1", True),
    ],
)
def test_a_word_is_read_by_type_and_unit(name: str, word: str, value: object) -> None:
    assert OPTIONS[name].read(word) == value


@pytest.mark.parametrize(("name", "word"), [("max_rows", "10"), ("max_rows", "0"), ("block", "9"), ("seconds", "-1")])
def test_a_word_that_is_no_value_is_refused(name: str, word: str) -> None:
    with pytest.raises(OptionError, match=word):
        OPTIONS[name].read(word)


def test_a_duration_has_the_minimum_of_its_option() -> None:
    hold = replace(OPTIONS["seconds"], minimum=0.1)
    assert hold.read("0.1") == 0.1
    with pytest.raises(OptionError, match=r"0.05 is less than 0.1 seconds"):
        hold.read("0.05")


def test_the_environment() -> None:
    assert OPTIONS["names"].read_variable("a, b,,") == ["a", "b"]
    assert OPTIONS["on"].read_variable("0") is False
    with pytest.raises(UsageError, match="ROWS: 0 is not between 1 and 9"):
        next(options_of(Variable)).read_variable("0")


@dataclass(frozen=True)
class Variable:
    rows: int = option(1, "rows", LIKE, maximum=9, variable="ROWS")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"max_rows": 0}, "max_rows must be at least 1, not 0"),
        ({"max_rows": 10}, "max_rows must be at most 9, not 10"),
        ({"count": 2**31 + 1}, "count must be at most 2147483648, not 2147483649"),
        ({"kind": "c"}, "kind must be one of a, b, not c"),
        ({"seconds": float("nan")}, "seconds must be at least 0, not nan"),
    ],
)
def test_a_record_is_checked(values: dict[str, Any], told: str) -> None:
    check_options(Outer("x"))
    with pytest.raises(UsageError, match=told):
        check_options(Outer("x", **values))


def test_amounts_are_written_as_they_are_read() -> None:
    assert [amount_text(size) for size in (0, 1000, 1536, 2**20, 3 * 2**40)] == ["0", "1000", "1536", "1MiB", "3TiB"]


def test_options_of_one_place() -> None:
    names = {option.name for option in options_of(Places, "serve")}
    assert names == {"both", "folder", "size"}


@dataclass(frozen=True)
class Places:
    both: int = option(1, "rows", LIKE, where=("serve", "LLM"))
    alone: int = option(1, "rows", LIKE, where=("LLM",))
    inner: Inner | None = None
