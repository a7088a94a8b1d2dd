"""Options that name a format: of calls of tools, or of thoughts. Nothing of either is imported where none is given."""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError
from collections.abc import Callable


def add_format_options(group: argparse._ArgumentGroup) -> None:
    """How the model writes calls and thoughts, where its chat template does not say so."""
    group.add_argument(
        "--tool-format",
        type=tool_format,
        metavar="NAME",
        help="how the model writes calls of tools: hermes, llama3, mistral, ... (default: as its chat template does)",
    )
    group.add_argument(
        "--reasoning-format",
        type=reasoning_format,
        metavar="NAME",
        help="how the model writes thoughts: think, mistral, harmony, ..., or none to leave them in answers "
        "(default: as its chat template does)",
    )


def tool_format(text: str) -> str:
    """The name of a format of calls."""
    from plimsoll_runtime.tools.registry import named

    return _known(text, named)


def reasoning_format(text: str) -> str:
    """The name of a format of thoughts, or `none`."""
    from plimsoll_runtime.reasoning.registry import named

    return _known(text, named)


def _known(text: str, named: Callable[[str], object]) -> str:
    from plimsoll_runtime.tools.base import UnknownFormat

    try:
        named(text)
    except UnknownFormat as error:
        raise ArgumentTypeError(str(error)) from error
    return text
