"""Runs a reader over an answer that grows."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.tools.parts import Arguments, Part, Reasoning, Text
from plimsoll_runtime.tools.reading import Page, Reading


class PartReader:
    """Reads one answer: gives what each piece of it says."""

    def __init__(self, page: Page, parts: Reading[None]) -> None:
        """`parts` reads the page."""
        self._page = page
        self._parts = parts

    def push(self, text: str) -> Sequence[Part]:
        """What more text says."""
        self._page.push(text)
        return self._next()

    def finish(self) -> Sequence[Part]:
        """The answer has ended: what was held back and is nothing else after all."""
        self._page.ended = True
        return self._next()

    def check_integrity(self) -> None:
        """Raises AssertionError where it has lost its place."""
        self._page.check_integrity()

    def _next(self) -> Sequence[Part]:
        found: list[Part] = []
        for part in self._parts:
            if part is None:
                break
            _add(found, part)
        return found


def _add(found: list[Part], part: Part) -> None:
    last = found[-1] if found else None
    if isinstance(part, Text) and isinstance(last, Text):
        found[-1] = Text(last.text + part.text)
    elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
        found[-1] = Reasoning(last.text + part.text)
    elif isinstance(part, Arguments) and isinstance(last, Arguments) and last.index == part.index:
        found[-1] = Arguments(part.index, last.text + part.text)
    else:
        found.append(part)
