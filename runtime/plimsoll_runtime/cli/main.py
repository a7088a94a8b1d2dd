"""The entry of the `plimsoll` command: finds the subcommand, passes the planner's commands on, and turns errors into
exit codes.
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
    "explain": "the whole decision about where a model of a pool lies, of a cluster or of a recorded state",
    "simulate": "run the planner of pools on a trace of requests and tell what it pays",
}
"""Name and help of each."""
NO_OPTIONS = "\0"
"""A first character that no argument has: all of them are the planner's to read, `--help` too."""


def add_planner_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the planner's commands to the command line."""
    for name, what in PLANNER_COMMANDS.items():
        parser = subparsers.add_parser(name, help=what, add_help=False, prefix_chars=NO_OPTIONS)
        parser.add_argument("rest", nargs="*")
        parser.set_defaults(func=run_planner)


def run_planner(args: argparse.Namespace) -> int:
    """The exit code of the planner's process.

    The runtime imports nothing of the control plane, though both are in one distribution.
    """
    return subprocess.call([sys.executable, "-m", "plimsoll_operator", args.command, *args.rest])


def _termination_log() -> str | None:
    path: str | None = from_environment(FrontConfig, "termination_log")
    return path


class Parser(argparse.ArgumentParser):
    """A parser whose errors are a process's last words, too: a pod's status shows those and no log."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        message += self._meant(message)
        write_last_words(_termination_log(), UsageError(message))
        super().error(message)

    def _meant(self, message: str) -> str:
        """The command or option that is most like the one that is wrong."""
        if (choice := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)) is not None:
            return did_you_mean(choice[1], re.findall(r"[^\s',]+", choice[2]))
        if (option := re.search(r"unrecognized arguments: (--[^\s=]+)", message)) is not None:
            return did_you_mean(option[1], _options(self))
        return ""


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Of a parser and its commands: an option that none of them knows is the whole command line's error."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _options(command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or that of the error's kind. Usage errors exit at once with 2."""
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
    """The whole command line. Each subcommand's module adds its own parser and sets `func`."""
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
