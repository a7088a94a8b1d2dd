"""The options of those who talk to a model: where it is, and how it is to answer."""

from __future__ import annotations

import argparse
from typing import Any

from plimsoll_runtime.cli import values

LONGEST_ANSWER = 2048


def add_talk_options(parser: argparse.ArgumentParser) -> None:
    """Add them."""
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
    """The fields of requests that they say."""
    said = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    return {field: value for field, value in said.items() if value is not None}
