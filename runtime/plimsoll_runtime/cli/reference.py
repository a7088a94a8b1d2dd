"""Generates the option reference: docs/reference/options.json and the tables of docs/reference/options.md.

`python -m plimsoll_runtime.cli.reference docs` writes both. Contract tests compare the CRDs and the operator with the
JSON, because these share no code with the runtime.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plimsoll_runtime.api.host.config import HostConfig
from plimsoll_runtime.api.server.config import ServerConfig
from plimsoll_runtime.cli.options import metavar
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.utils.option import Option, options_of

RECORDS = (ServerConfig, HostConfig, Settings)
MARK = "<!-- What follows is generated: make reference -->\n"
TYPES = {bool: "boolean", int: "integer", float: "number"}
"""JSON types by Python type; all others are strings."""


def all_options() -> list[Option]:
    """Return the options of all records, without duplicates."""
    return list(dict.fromkeys(option for record in RECORDS for option in options_of(record)))


def as_json() -> str:
    """Return the content of docs/reference/options.json; empty fields are left out."""
    return json.dumps({"options": [_entry(option) for option in all_options()]}, indent=2) + "\n"


def with_tables(page: str) -> str:
    """Return docs/reference/options.md with its tables replaced. Raises ValueError if `page` lacks the mark."""
    prose, mark, _ = page.partition(MARK)
    if not mark:
        raise ValueError("the page lacks the mark after which the tables are written")
    return prose + MARK + "\n".join(_tables()) + "\n"


def main(folder: Path) -> None:
    """Write both files into `folder`."""
    page = folder / "options.md"
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "options.json").write_text(as_json(), encoding="utf-8")


def _entry(option: Option) -> dict[str, Any]:
    entry = {
        "name": option.name,
        "flag": option.flag,
        "environment": option.variable,
        "type": TYPES.get(option.kind, "string"),
        "repeats": option.repeats or None,
        "unit": option.unit,
        "choices": list(option.choices),
        "minimum": None if option.choices else option.minimum,
        "maximum": option.maximum,
        "default": option.default,
        "default_text": option.usual,
        "where": list(option.where),
        "deployment": option.deployment,
        "pool": option.pool,
        "help": option.help,
    }
    return {key: value for key, value in entry.items() if value not in (None, "", [])}


def _tables() -> Iterator[str]:
    options = all_options()
    for heading in dict.fromkeys(option.group for option in options):
        yield from ("", f"## {heading[0].upper()}{heading[1:]}", "")
        yield from ("| option | default | where | what it does |", "|---|---|---|---|")
        yield from (_row(option) for option in options if option.group == heading)


def _row(option: Option) -> str:
    value = "" if option.kind is bool else " " + (metavar(option) or "|".join(option.choices) or option.name.upper())
    names = [f"`{option.flag}{value}`"] if option.flag else []
    names += [f"`{option.variable}`"] if option.variable else []
    paths = [f"`spec.{option.deployment}`"] if option.deployment else []
    paths += [f"RuntimePool `spec.{option.pool}`"] if option.pool else []
    usual = option.usual_text or ("off" if option.kind is bool else "-")
    cells = (", ".join(names), usual, ", ".join((*option.where, *paths)), option.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
