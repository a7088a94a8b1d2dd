"""docs/reference/options.json and docs/reference/options.md list every option of the commands."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import pytest

from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.cli.reference import all_options, as_json, with_tables
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.group_options import GroupOptions
from plimsoll_runtime.utils.option import fields_of

DOCS = Path(__file__).parents[3] / "docs" / "reference"
COMMANDS = ("serve", "host", "batch", "profile")
OF_COMMANDS = {
    "host": {"--models"},
    "profile": {"--workload", "--batch", "--prompt-len", "--output-len", "--trace", "--json"},
}
"""Flags that control a command, not an engine or a server."""


def flags(command: str) -> set[str]:
    (commands,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    actions = commands.choices[command]._actions
    return {action.option_strings[0] for action in actions if action.option_strings} - {"-h"}


def test_the_files_are_as_new() -> None:
    page = (DOCS / "options.md").read_text(encoding="utf-8")
    assert page == with_tables(page), "docs/reference/options.md is old: run `make reference`"
    assert (DOCS / "options.json").read_text(encoding="utf-8") == as_json(), "options.json is old: run `make reference`"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_flags_that_are_listed(command: str) -> None:
    listed = {option.flag for option in all_options() if command in option.where and option.flag}
    assert listed <= flags(command)
    if command != "batch":
        assert flags(command) - listed == OF_COMMANDS.get(command, set())


def test_every_option_can_be_set_somewhere() -> None:
    for option in all_options():
        assert option.flag or option.variable, option
        assert option.where, option
        assert set(option.where) <= {*COMMANDS, "LLM", "host API"}, option


def test_an_engines_options_are_all_declared() -> None:
    no_options = {"model", "offline", "step_tracing"}
    assert set(fields_of(EngineConfig)) == {field.name for field in fields(EngineConfig)} - no_options
    assert set(fields_of(GroupOptions)) == {field.name for field in fields(GroupOptions)}


def test_a_page_without_a_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the mark"):
        with_tables("# Options\n")
