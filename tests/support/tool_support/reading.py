"""Cuts an answer, runs a parser over its pieces, and puts the parts together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from plimsoll_runtime.reasoning.base import ReasoningParser
from plimsoll_runtime.tools.base import Arguments, CallBegins, Part, Text, Tool, ToolFormat, ToolParser

Found = list[str | tuple[str, str]]
"""What an answer holds, in order: texts, and calls with their names and arguments."""


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    """A text in pieces, cut at these places as far as it has them."""
    ends = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


def parts_of(parser: ToolParser | ReasoningParser, pieces: Iterable[str]) -> list[Part]:
    """All that a parser gives for an answer in these pieces."""
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.push(piece)
        parser.check_integrity()  # type: ignore[union-attr]
    return [*parts, *parser.finish()]


def read(form: ToolFormat, tools: Sequence[Tool], pieces: Iterable[str]) -> Found:
    """What a parser finds in an answer that comes in these pieces."""
    return together(parts_of(form.parser(tools), pieces))


def together(parts: Iterable[Part]) -> Found:
    """Joins what belongs together, and asserts that calls are numbered and their arguments follow them."""
    found: Found = []
    calls = 0
    for part in parts:
        if isinstance(part, Text):
            assert part.text
            if found and isinstance(found[-1], str):
                found[-1] += part.text
            else:
                found.append(part.text)
        elif isinstance(part, CallBegins):
            assert part.index == calls
            calls += 1
            found.append((part.name, ""))
        else:
            assert isinstance(part, Arguments)
            assert part.index == calls - 1
            last = found[-1]
            assert isinstance(last, tuple)
            found[-1] = (last[0], last[1] + part.text)
    return found
