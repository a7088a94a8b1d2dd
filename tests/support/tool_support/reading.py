"""Runs a parser over an answer, and puts its parts together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plimsoll_runtime.tools.format import ToolFormat
from plimsoll_runtime.tools.parts import Arguments, CallBegins, Part, Text, Tool

Found = list[str | tuple[str, str]]
"""What an answer holds, in order: texts, and calls with their names and arguments."""


def read(form: ToolFormat, tools: Sequence[Tool], pieces: Iterable[str]) -> Found:
    """What a parser finds in an answer that comes in these pieces."""
    parser = form.parser(tools)
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.push(piece)
        parser.check_integrity()  # type: ignore[attr-defined]
    parts += parser.finish()
    return together(parts)


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
