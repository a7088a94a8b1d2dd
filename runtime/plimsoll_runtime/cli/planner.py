"""`plimsoll explain` and `plimsoll simulate`: the operator's planner, which a process of its own runs.

The runtime imports nothing of the control plane, though both are in one distribution.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any

COMMANDS = {
    "explain": "the whole decision about where a model of a pool lies, of a cluster or of a recorded state",
    "simulate": "run the planner of pools on a trace of requests and tell what it pays",
}
NO_OPTIONS = "\0"
"""A first character that no argument has: all of them are the planner's to read, `--help` too."""


def add_planner_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add both to the command line."""
    for name, what in COMMANDS.items():
        parser = subparsers.add_parser(name, help=what, add_help=False, prefix_chars=NO_OPTIONS)
        parser.add_argument("rest", nargs="*")
        parser.set_defaults(func=run_planner)


def run_planner(args: argparse.Namespace) -> int:
    """The exit code of the planner's process."""
    return subprocess.call([sys.executable, "-m", "plimsoll_operator", args.command, *args.rest])
