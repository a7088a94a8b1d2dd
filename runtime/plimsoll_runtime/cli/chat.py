"""`plimsoll chat`, a conversation in a terminal, and `plimsoll ask`, one question for people and pipes."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import AsyncExitStack, aclosing
from typing import Any

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils import option_values as values

LONGEST_ANSWER = 2048


def add_talk_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `chat` and `ask` share."""
    parser.add_argument(
        "--url", help="an OpenAI API: of a gateway, or of `plimsoll serve` (default: what `plimsoll up` runs here)"
    )
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before everything else")
    parser.add_argument(
        "--max-tokens",
        type=values.positive,
        default=LONGEST_ANSWER,
        metavar="N",
        help="longest answer (default: %(default)s)",
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="0: always the likeliest (default: the model's)")


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """The fields that these options set in each request."""
    said = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    return {field: value for field, value in said.items() if value is not None}


NO_CHAT = 1


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `chat` to the command line."""
    parser = subparsers.add_parser(
        "chat",
        help="talk to a model in this terminal",
        description="Talk to a model: one that a server offers, or one that is served for as long as the chat goes on. "
        "In the chat, /help lists what may be typed beside what is meant for the model. PLIMSOLL_API_KEY in the "
        "environment is the key, where one is needed.",
        epilog="examples:\n  plimsoll chat                          with what `plimsoll up` runs here\n"
        "  plimsoll chat demo://gemma-3-270m      start it, talk, stop it\n"
        "  plimsoll chat qwen3 --url https://ai.example.com",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a name that the server offers, or a model to start (default: its first)",
    )
    add_talk_options(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Talk until the person leaves; 1 where there is nobody to talk to."""
    from plimsoll_runtime.cli.progress import console_progress
    from plimsoll_runtime.local.chat.conversation import AskError
    from plimsoll_runtime.local.chat.server import ServerRequest
    from plimsoll_runtime.local.chat.terminal import Terminal

    try:
        wish, progress = ServerRequest(args.model, args.url), console_progress(sys.stderr)
        with Terminal(wish, args.system, settings(args), progress) as terminal:
            terminal.converse()
    except AskError as error:
        print(f"plimsoll chat: {error}", file=sys.stderr)
        return NO_CHAT
    return 0


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
    from plimsoll_runtime.local.chat.conversation import AskError

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
    from plimsoll_runtime.local.chat.conversation import Talk
    from plimsoll_runtime.local.chat.server import ServerRequest, find

    async with aiohttp.ClientSession(trust_env=False) as session, AsyncExitStack() as stack:
        with console_progress(sys.stderr) as progress:
            place = await find(ServerRequest(args.model, args.url), session, stack, progress)
        talk = Talk(place.server, place.model, args.system, settings(args))
        async with aclosing(talk.say(session, question)) as chunks:
            async for chunk in chunks:
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()
