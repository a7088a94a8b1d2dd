"""`plimsoll chat`, a conversation in a terminal, and `plimsoll ask`, one question in a terminal or a pipe."""

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
        "--url",
        help="OpenAI API of a gateway or of `plimsoll serve` (default: the running `plimsoll up` of this machine)",
    )
    parser.add_argument("--system", metavar="TEXT", help="system message, sent before the conversation")
    parser.add_argument(
        "--max-tokens",
        type=values.positive,
        default=LONGEST_ANSWER,
        metavar="N",
        help="maximum number of tokens of each output (default: %(default)s)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="sampling temperature; 0 always picks the likeliest token (default: the model's)",
    )


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the request fields that these options set."""
    said = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    return {field: value for field, value in said.items() if value is not None}


NO_CHAT = 1


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `chat` to the command line."""
    parser = subparsers.add_parser(
        "chat",
        help="talk to a model in this terminal",
        description="Talk to a model. MODEL is a name that a running server offers, or a model to serve for the "
        "duration of the chat. Type /help in the chat for its commands. If the server needs an API key, set "
        "PLIMSOLL_API_KEY.",
        epilog="examples:\n  plimsoll chat                          talk to the running `plimsoll up`\n"
        "  plimsoll chat demo://gemma-3-270m      start it, talk, stop it\n"
        "  plimsoll chat qwen3 --url https://ai.example.com",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="name that the server offers, or a model to start (default: the server's first model)",
    )
    add_talk_options(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Talk until the user leaves. Return 1 if no model is available."""
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
        description="Ask a model one question and write only its output to standard output. Text from a pipe is "
        "appended to the question, or is the question. Exits with 1 if the model gives no output.",
        epilog='examples:\n  plimsoll ask "What is the capital of France?"\n'
        '  git diff | plimsoll ask --model hf://Qwen/Qwen3-0.6B "Say in one line what changes."',
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("question", nargs="*", metavar="QUESTION")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="name that the server offers, or a model to start (default: the server's first model)",
    )
    add_talk_options(parser)
    parser.set_defaults(func=run_ask)


def run_ask(args: argparse.Namespace) -> int:
    """Ask one question. Return 1 if there is no output. Raises UsageError."""
    from plimsoll_runtime.local.chat.conversation import AskError

    question = _question(" ".join(args.question))
    try:
        asyncio.run(_ask(args, question))
    except AskError as error:
        print(f"plimsoll ask: no answer: {error}", file=sys.stderr)
        return NO_ANSWER
    except BrokenPipeError:
        # The reader closed the pipe. Discard the output that Python would flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _question(words: str) -> str:
    piped = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    question = "\n\n".join(part for part in (words, piped) if part)
    if not question:
        raise UsageError("the question is empty; give it as an argument or through a pipe")
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
