"""Splits an output, parses its pieces, and joins the parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from plimsoll_runtime.reasoning.base import ReasoningParser
from plimsoll_runtime.tools.base import Arguments, CallBegins, Part, Text, Tool, ToolFormat, ToolParser

Found = list[str | tuple[str, str]]
"""The content of an output in order: texts, and calls with their names and arguments."""


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    """Split a text at these positions, ignoring positions beyond its end."""
    ends = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


def parts_of(parser: ToolParser | ReasoningParser, pieces: Iterable[str]) -> list[Part]:
    """Return all parts that a parser yields for an output in these pieces."""
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.push(piece)
        parser.check_integrity()  # type: ignore[union-attr]
    return [*parts, *parser.finish()]


def read(form: ToolFormat, tools: Sequence[Tool], pieces: Iterable[str]) -> Found:
    """Parse an output in these pieces and return its joined parts."""
    return together(parts_of(form.parser(tools), pieces))


def together(parts: Iterable[Part]) -> Found:
    """Join adjacent parts, and assert that calls are numbered and followed by their arguments."""
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
