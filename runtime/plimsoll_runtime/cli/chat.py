"""`plimsoll chat`: a conversation with a model, in a terminal."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from plimsoll_runtime.cli.talk_options import add_talk_options, settings

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
    from plimsoll_runtime.local.talk.place import Wish
    from plimsoll_runtime.local.talk.stream import AskError
    from plimsoll_runtime.local.talk.terminal import Terminal

    try:
        wish, progress = Wish(args.model, args.url), console_progress(sys.stderr)
        with Terminal(wish, args.system, settings(args), progress) as terminal:
            terminal.converse()
    except AskError as error:
        print(f"plimsoll chat: {error}", file=sys.stderr)
        return NO_CHAT
    return 0
