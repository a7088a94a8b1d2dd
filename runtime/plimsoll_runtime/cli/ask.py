"""`plimsoll ask`: one question, for people and for pipes."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import AsyncExitStack, aclosing
from typing import Any

from plimsoll_runtime.cli.talk_options import add_talk_options, settings
from plimsoll_runtime.errors import UsageError

NO_ANSWER = 1


def add_ask_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `ask` to the command line."""
    parser = subparsers.add_parser(
        "ask",
        help="ask a model one question, in a terminal or in a pipe",
        description="Ask a model one question and write its answer, and nothing else, to standard output. What comes "
        "through a pipe is added to the question, or is the question. Exits with 1 where there is no answer.",
        epilog='examples:\n  plimsoll ask "What is the capital of France?"\n'
        '  git diff | plimsoll ask --model hf://Qwen/Qwen3-0.6B "Say in one line what changes."',
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("question", nargs="*", metavar="QUESTION")
    parser.add_argument(
        "--model", metavar="MODEL", help="a name that the server offers, or a model to start (default: its first)"
    )
    add_talk_options(parser)
    parser.set_defaults(func=run_ask)


def run_ask(args: argparse.Namespace) -> int:
    """Ask; 1 where there is no answer. Raises UsageError."""
    from plimsoll_runtime.local.talk.stream import AskError

    question = _question(" ".join(args.question))
    try:
        asyncio.run(_ask(args, question))
    except AskError as error:
        print(f"plimsoll ask: no answer: {error}", file=sys.stderr)
        return NO_ANSWER
    except BrokenPipeError:
        # Whoever reads has read enough. What Python would still write at its end goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _question(words: str) -> str:
    piped = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    question = "\n\n".join(part for part in (words, piped) if part)
    if not question:
        raise UsageError("there is no question: write one, or send it through a pipe")
    return question


async def _ask(args: argparse.Namespace, question: str) -> None:
    import aiohttp

    from plimsoll_runtime.cli.progress import console_progress
    from plimsoll_runtime.local.talk.place import Wish, find
    from plimsoll_runtime.local.talk.talk import Talk

    async with aiohttp.ClientSession(trust_env=False) as session, AsyncExitStack() as stack:
        with console_progress(sys.stderr) as progress:
            place = await find(Wish(args.model, args.url), session, stack, progress)
        talk = Talk(place.server, place.model, args.system, settings(args))
        async with aclosing(talk.say(session, question)) as chunks:
            async for chunk in chunks:
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()
