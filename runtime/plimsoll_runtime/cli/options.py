"""Converts options between records and the command line: flags from the fields of records, records from flags."""

from __future__ import annotations

import argparse
import os
from collections.abc import Container
from typing import Any, TypeVar

from plimsoll_runtime.utils.option import Declared, Option, fields_of, options_of

Record = TypeVar("Record")
METAVARS = {"tokens": "TOKENS", "seconds": "S", "bytes": "SIZE", "share": "SHARE", "days": "DAYS", "steps": "STEPS"}
"""Metavariables of flags, by unit."""


def add_options(
    parser: argparse.ArgumentParser, command: str, *records: type, group: argparse._ArgumentGroup | None = None
) -> None:
    """Add the records' flags for `command`: to `group`, or to one group per heading."""
    options = [option for record in records for option in options_of(record, command) if option.flag]
    for heading in dict.fromkeys(option.group for option in options):
        headed = group or parser.add_argument_group(heading)
        for option in options:
            if option.group == heading:
                _add(headed, option)


def read_options(record: type[Record], args: argparse.Namespace, **given: Any) -> Record:
    """Return the record that the command line and the environment describe; `given` sets further fields.

    Raises UsageError for contradictory values, and for bad values in the environment.
    """
    return record(**given, **_values(record, args, given))


def from_environment(record: type, name: str) -> Any:
    """Return the value of an option that has no flag, or its default if its variable is not set. Raises UsageError."""
    (option,) = (option for option in options_of(record) if option.name == name)
    return _value(option, argparse.Namespace())


def metavar(option: Option) -> str | None:
    """Return the placeholder of the flag's value in help texts, or None."""
    return option.metavar or METAVARS.get(option.unit) or ("N" if option.kind is int else None)


def _values(record: type, args: argparse.Namespace, given: Container[str] = ()) -> dict[str, Any]:
    """Return the values of all fields except those in `given`."""
    return {name: _declared_value(each, args) for name, each in fields_of(record).items() if name not in given}


def _declared_value(declared: Declared, args: argparse.Namespace) -> Any:
    """Return the value of an option or of a nested record, or None if the record lacks a required option."""
    if isinstance(declared, Option):
        return _value(declared, args)
    found = _values(declared, args)
    is_missing = any(option.required and found[option.name] is None for option in options_of(declared))
    return None if is_missing else declared(**found)


def _value(option: Option, args: argparse.Namespace) -> Any:
    """Return the value from the command line, else from the environment. Values of a repeatable option are combined."""
    value = getattr(args, _dest(option), option.default) if option.flag else option.default
    text = os.environ.get(option.variable, "").strip() if option.variable else ""
    if option.repeats:
        return option.collect([*(option.read_variable(text) if text else ()), *(value or ())])
    return option.read_variable(text) if text and value == option.default else value


def _dest(option: Option) -> str:
    return option.flag.removeprefix("--").replace("-", "_")


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    usual = f" (default: {option.usual_text})" if option.usual_text else ""
    text = (option.help + usual).replace("%", "%%")
    if option.kind is bool:
        # argparse would append the default to the help if it were passed here.
        group.add_argument(option.flag, action=argparse.BooleanOptionalAction, help=text).default = option.default
    elif option.choices and option.parse is None and option.kind is str:
        group.add_argument(option.flag, choices=option.choices, default=option.default, help=text)
    else:
        group.add_argument(
            option.flag,
            action="append" if option.repeats else "store",
            type=option.read,
            default=option.default,
            metavar=metavar(option),
            help=text,
        )
