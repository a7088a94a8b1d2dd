"""Parser of the `plimsoll` command line: runs the subcommand, and turns errors into exit codes.

`explain` and `simulate` run in a process of the operator.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from plimsoll_runtime.api.server.config import FrontConfig
from plimsoll_runtime.cli import batch, chat, host, models, profile, serve, status, up
from plimsoll_runtime.cli.chat import add_ask_parser
from plimsoll_runtime.cli.downloads import add_fetch_parser
from plimsoll_runtime.cli.options import from_environment
from plimsoll_runtime.cli.up import add_down_parser
from plimsoll_runtime.errors import PlimsollError, UsageError
from plimsoll_runtime.utils.process_exit import INTERRUPTED, write_last_words
from plimsoll_runtime.utils.suggestions import did_you_mean
from plimsoll_runtime.version import VERSION

PLANNER_COMMANDS = {
    "explain": "explain where a pool places a model, from a cluster or a recorded state",
    "simulate": "run the pool planner on a trace of requests and print the loading time that it costs",
}
"""Help texts, by name of the command."""
NO_OPTIONS = "\0"
"""A prefix that no argument has, so that argparse passes all arguments to the planner, including `--help`."""


def add_planner_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the planner's commands to the command line."""
    for name, what in PLANNER_COMMANDS.items():
        parser = subparsers.add_parser(name, help=what, add_help=False, prefix_chars=NO_OPTIONS)
        parser.add_argument("rest", nargs="*")
        parser.set_defaults(func=run_planner)


def run_planner(args: argparse.Namespace) -> int:
    """Run the planner in a process of the operator, and return its exit code.

    The runtime imports no module of the control plane, although one distribution has both.
    """
    return subprocess.call([sys.executable, "-m", "plimsoll_operator", args.command, *args.rest])


def _termination_log() -> str | None:
    path: str | None = from_environment(FrontConfig, "termination_log")
    return path


class Parser(argparse.ArgumentParser):
    """An argument parser that also writes its errors to the termination log, which a pod's status shows."""

    def error(self, message: str) -> NoReturn:
        """Write the error, with the most similar command or option, and exit with 2."""
        message += self._meant(message)
        write_last_words(_termination_log(), UsageError(message))
        super().error(message)

    def _meant(self, message: str) -> str:
        """Return a hint with the command or option most similar to the wrong one, or ""."""
        if (choice := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)) is not None:
            return did_you_mean(choice[1], re.findall(r"[^\s',]+", choice[2]))
        if (option := re.search(r"unrecognized arguments: (--[^\s=]+)", message)) is not None:
            return did_you_mean(option[1], _options(self))
        return ""


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the options of a parser and of its subcommands. (Argparse reports unknown options at the main parser.)"""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _options(command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return 0 or the exit code of the error's kind. Usage errors exit with 2 right away."""
    args = build_parser().parse_args(argv)
    try:
        return int(args.func(args))
    except PlimsollError as error:
        write_last_words(_termination_log(), error)
        print(f"plimsoll: {error}", file=sys.stderr)
        return error.kind.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line. Each subcommand's module adds its own parser and sets `func`."""
    parser = Parser(
        prog="plimsoll",
        description="Serve language models with an OpenAI API, on a laptop or in a pod.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"plimsoll {VERSION}")
    subparsers: argparse._SubParsersAction[Any] = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )
    for add_parser in (
        serve.add_parser,
        host.add_parser,
        up.add_parser,
        chat.add_parser,
        add_ask_parser,
        status.add_parser,
        add_down_parser,
        add_fetch_parser,
        models.add_parser,
        batch.add_parser,
        profile.add_parser,
        add_planner_parsers,
    ):
        add_parser(subparsers)
    return parser
