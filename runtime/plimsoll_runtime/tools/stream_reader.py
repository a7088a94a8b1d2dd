"""Parses a growing output with generators that wait for more text, and the reader that runs them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

from plimsoll_runtime.tools.base import Arguments, Part, Reasoning, Text

Result = TypeVar("Result")
Reading = Generator[Part | None, None, Result]

WHITE = " \t\r\n"


class NoCall(Exception):
    """The text looked like a call but is not one."""


class Ended(Exception):
    """The output ended before the expected text."""


class Page:
    """The output so far. `at` is the next character to read; characters before `kept` are never read again."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.kept = 0
        self.ended = False

    def push(self, text: str) -> None:
        """Append text."""
        self.text = self.text[self.kept :] + text
        self.at -= self.kept
        self.kept = 0

    def keep(self) -> None:
        """Settle everything read so far: it belongs to a call, or was returned as text."""
        self.kept = self.at

    def is_over(self) -> bool:
        """Return whether everything is read and the output has ended."""
        return self.ended and self.at == len(self.text)

    def check_integrity(self) -> None:
        """Raise AssertionError if the positions are not in order."""
        assert 0 <= self.kept <= self.at <= len(self.text)


def peek(page: Page) -> Reading[str]:
    """Return the next character without reading it. Raises Ended."""
    while page.at == len(page.text):
        if page.ended:
            raise Ended
        yield None
    return page.text[page.at]


def blanks(page: Page) -> Reading[str]:
    """Read white space."""
    found = ""
    while not page.is_over():
        char = yield from peek(page)
        if char not in WHITE:
            break
        found += char
        page.at += 1
    return found


def either(page: Page, *options: str) -> Reading[str]:
    """Read the longest of the options that is next, or return "" if none is.

    Raises Ended if the output ends within one.
    """
    while not page.ended and any(_begins(page, option) for option in options):
        yield None
    found = max((option for option in options if page.text.startswith(option, page.at)), key=len, default="")
    if not found and page.ended and any(_begins(page, option) for option in options):
        raise Ended
    page.at += len(found)
    return found


def ahead(page: Page, *options: str) -> Reading[str]:
    """Read white space and the longest of the options after it. If there is none, return "" and go back to the last
    settled position.
    """
    try:
        yield from blanks(page)
        found = yield from either(page, *options)
    except Ended:
        found = ""
    if not found:
        page.at = page.kept
    return found


def expect(page: Page, *options: str) -> Reading[str]:
    """Read one of the options. Raises NoCall if none is next."""
    found = yield from either(page, *options)
    if not found:
        raise NoCall
    return found


def closing(page: Page, *ends: str) -> Reading[None]:
    """Settle a call, and read its end marker, which some models leave out."""
    page.keep()
    yield from blanks(page)
    if not (yield from either(page, *ends)):
        page.at = page.kept


def until(page: Page, *ends: str, most: int | None = None) -> Reading[tuple[str, str]]:
    """Read up to and including the first of `ends`; return the text before it and the end. Raises Ended; NoCall after
    `most` characters.
    """
    start = page.at - page.kept
    while True:
        where, end = _first(page.text, page.kept + start, ends)
        if most is not None and (where if end else len(page.text)) - page.kept - start > most:
            raise NoCall
        if end:
            break
        if page.ended:
            raise Ended
        yield None
    found = page.text[page.kept + start : where]
    page.at = where + len(end)
    return found, end


def before(page: Page, *ends: str, cut: bool = False) -> Reading[str]:
    """Read the text before the first of `ends`, without a suffix that may be the beginning of one of them. Returns ""
    if one of `ends` is next, or at the end of the output. If the output ends with such a suffix, the suffix is read as
    text, unless `cut`.
    """
    while True:
        where, end = _first(page.text, page.at, ends)
        if not end and (cut or not page.ended):
            where = len(page.text) - _overlap(page.text, page.at, ends)
        if where > page.at or end or page.ended:
            break
        yield None
    found = page.text[page.at : where]
    page.at = where
    return found


def given(page: Page) -> Reading[None]:
    """Yield everything read since the last settled position as Text, and settle it (see `Page.keep`)."""
    text = page.text[page.kept : page.at]
    page.keep()
    if text:
        yield Text(text)


def all_of(page: Page) -> Reading[None]:
    """Yield all remaining text."""
    while True:
        page.at = len(page.text)
        yield from given(page)
        if page.ended:
            return
        yield None


def _begins(page: Page, option: str) -> bool:
    """Return whether the remaining text is a proper prefix of `option`."""
    left = len(page.text) - page.at
    return left < len(option) and page.text.endswith(option[:left])


def _first(text: str, start: int, ends: tuple[str, ...]) -> tuple[int, str]:
    """Return the position of the first of `ends`, and which: the longest one at that position."""
    found = [(text.find(end, start), -len(end), end) for end in ends]
    where, _, end = min((each for each in found if each[0] >= 0), default=(len(text), 0, ""))
    return where, end


def _overlap(text: str, start: int, ends: tuple[str, ...]) -> int:
    """Return the number of last characters that may be the start of one of `ends`."""
    longest = min(max(map(len, ends), default=1) - 1, len(text) - start)
    return next((n for n in range(longest, 0, -1) if any(end.startswith(text[-n:]) for end in ends)), 0)


class PartReader:
    """Parses one output and returns the parts found in each piece.

    Parsers are generators. They yield the parts that they find, and None if they need more text. A format parses calls
    as if the whole output were available; the result does not depend on how the output is split into pieces.
    """

    def __init__(self, page: Page, parts: Reading[None]) -> None:
        """`parts` is the generator that reads `page`."""
        self._page = page
        self._parts = parts

    def push(self, text: str) -> Sequence[Part]:
        """Parse more text and return its parts."""
        self._page.push(text)
        return self._next()

    def finish(self) -> Sequence[Part]:
        """End the output and return the remaining parts."""
        self._page.ended = True
        return self._next()

    def check_integrity(self) -> None:
        """Raise AssertionError if the page's positions are not in order."""
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
