"""Reads an output while it grows: generators that wait for more text, and the reader that runs them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

from plimsoll_runtime.tools.base import Arguments, Part, Reasoning, Text

Result = TypeVar("Result")
Reading = Generator[Part | None, None, Result]

WHITE = " \t\r\n"


class NoCall(Exception):
    """What looked like a call is none."""


class Ended(Exception):
    """The answer is over in the middle of something."""


class Page:
    """What has been written. `at` is the next character to read; those before `kept` need never be read again."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.kept = 0
        self.ended = False

    def push(self, text: str) -> None:
        """More has been written."""
        self.text = self.text[self.kept :] + text
        self.at -= self.kept
        self.kept = 0

    def keep(self) -> None:
        """All that was read is settled: it is part of a call, or was given as text."""
        self.kept = self.at

    def is_over(self) -> bool:
        """Whether all is read, and no more will come."""
        return self.ended and self.at == len(self.text)

    def check_integrity(self) -> None:
        """Raises AssertionError where the places are not in order."""
        assert 0 <= self.kept <= self.at <= len(self.text)


def peek(page: Page) -> Reading[str]:
    """The next character, which stays unread. Raises Ended."""
    while page.at == len(page.text):
        if page.ended:
            raise Ended
        yield None
    return page.text[page.at]


def blanks(page: Page) -> Reading[str]:
    """White space, as far as it goes."""
    found = ""
    while not page.is_over():
        char = yield from peek(page)
        if char not in WHITE:
            break
        found += char
        page.at += 1
    return found


def either(page: Page, *options: str) -> Reading[str]:
    """The longest of some texts that stands here, and is read; empty where none does.

    Raises Ended where the answer ends within one.
    """
    while not page.ended and any(_begins(page, option) for option in options):
        yield None
    found = max((option for option in options if page.text.startswith(option, page.at)), key=len, default="")
    if not found and page.ended and any(_begins(page, option) for option in options):
        raise Ended
    page.at += len(found)
    return found


def ahead(page: Page, *options: str) -> Reading[str]:
    """The longest of some texts that stands behind white space, both read; where none does it is empty, and all that
    is not settled is unread."""
    try:
        yield from blanks(page)
        found = yield from either(page, *options)
    except Ended:
        found = ""
    if not found:
        page.at = page.kept
    return found


def expect(page: Page, *options: str) -> Reading[str]:
    """One of some texts. Raises NoCall where none stands here."""
    found = yield from either(page, *options)
    if not found:
        raise NoCall
    return found


def closing(page: Page, *ends: str) -> Reading[None]:
    """Settles a call, and what ends it, which some models leave out."""
    page.keep()
    yield from blanks(page)
    if not (yield from either(page, *ends)):
        page.at = page.kept


def until(page: Page, *ends: str, most: int | None = None) -> Reading[tuple[str, str]]:
    """All up to the first of some texts, and that text, both read. Raises Ended; NoCall after `most` characters."""
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
    """Some of the text that stands before the first of some texts: as much as is sure. Empty where one stands here, or
    where the answer is over. What may be the beginning of one is waited for, and, where the answer is `cut`, left."""
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
    """Settles what was read as text."""
    text = page.text[page.kept : page.at]
    page.keep()
    if text:
        yield Text(text)


def all_of(page: Page) -> Reading[None]:
    """Whatever is still to come is text."""
    while True:
        page.at = len(page.text)
        yield from given(page)
        if page.ended:
            return
        yield None


def _begins(page: Page, option: str) -> bool:
    """Whether all that is left is the beginning of a text, and not the whole of it."""
    left = len(page.text) - page.at
    return left < len(option) and page.text.endswith(option[:left])


def _first(text: str, start: int, ends: tuple[str, ...]) -> tuple[int, str]:
    """Where the first of some texts stands, and which: the longest of those that stand there."""
    found = [(text.find(end, start), -len(end), end) for end in ends]
    where, _, end = min((each for each in found if each[0] >= 0), default=(len(text), 0, ""))
    return where, end


def _overlap(text: str, start: int, ends: tuple[str, ...]) -> int:
    """How many of the last characters may be the beginning of one of some texts."""
    longest = min(max(map(len, ends), default=1) - 1, len(text) - start)
    return next((n for n in range(longest, 0, -1) if any(end.startswith(text[-n:]) for end in ends)), 0)


class PartReader:
    """Reads one answer: gives what each piece of it says.

    Readers are generators. They give the parts that they find, and None if they need more text than there is. A format
    reads its calls as if the whole output were there; it makes no difference whether the output comes at once or by
    characters.
    """

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
