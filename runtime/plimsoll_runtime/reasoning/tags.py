"""Thoughts between two tags, at the beginning of an answer: what nearly all models write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_runtime.reasoning.format import Marks
from plimsoll_runtime.tools.growing import PartReader
from plimsoll_runtime.tools.parts import Reasoning, Text
from plimsoll_runtime.tools.reading import WHITE, Ended, Page, Reading, all_of, before, blanks, either


@dataclass(frozen=True, slots=True)
class TagFormat:
    """Such a format. A template has it where all of one of `signs` stand in it.

    - `implied`: texts that end a thought as well, and are part of what follows.
    - `wraps`: what models write around the answer proper, which is left out.
    """

    name: str
    marks: Marks
    signs: tuple[tuple[str, ...], ...]
    implied: tuple[str, ...] = ()
    wraps: tuple[str, str] | None = None
    efforts: Sequence[str] | None = None

    def fits(self, template: str) -> bool:
        """Whether its signs stand in a chat template."""
        return any(all(sign in template for sign in signs) for signs in self.signs)

    def opened_by(self, prompt: str) -> bool:
        """Whether the prompt's last word begins a thought."""
        return prompt.rstrip(WHITE).endswith(self.marks.begin)

    def parser(self, *, opened: bool) -> PartReader:
        """White space around a thought is left out."""
        page = Page()
        return PartReader(page, _answer(page, self, opened=opened))


def tagged(
    name: str,
    begin: str,
    end: str,
    *,
    signs: tuple[tuple[str, ...], ...] = (),
    implied: tuple[str, ...] = (),
    wraps: tuple[str, str] | None = None,
) -> TagFormat:
    """A format whose tags stand on lines of their own."""
    marks = Marks(begin, end, closing=f"\n{end}", gap="\n\n")
    return TagFormat(name, marks, signs or ((end,),), implied, wraps)


def _answer(page: Page, form: TagFormat, *, opened: bool) -> Reading[None]:
    try:
        if opened or (yield from _begins(page, form.marks.begin)):
            yield from _thought(page, form)
        yield from _rest(page, form)
    except Ended:  # all words were told before; what is left is white space
        page.at = len(page.text)
        page.keep()


def _begins(page: Page, begin: str) -> Reading[bool]:
    """Whether a tag stands behind white space, which are both read then."""
    try:
        yield from blanks(page)
        found = yield from either(page, begin)
    except Ended:
        found = ""
    if not found:
        page.at = page.kept
        return False
    page.keep()
    return True


def _thought(page: Page, form: TagFormat) -> Reading[None]:
    """A thought up to its end, and the white space behind it. Some models begin one that the prompt has begun."""
    ends = (form.marks.end, *form.implied)
    yield from _begins(page, form.marks.begin)
    yield from _within(page, Reasoning, ends)
    found = yield from either(page, *ends)
    if found in form.implied:
        page.at -= len(found)
    else:
        yield from blanks(page)
    page.keep()


def _rest(page: Page, form: TagFormat) -> Reading[None]:
    if form.wraps is not None:
        begin, end = form.wraps
        if (yield from _begins(page, begin)):
            yield from _within(page, Text, (end,))
            yield from either(page, end)
            yield from blanks(page)
            page.keep()
    yield from all_of(page)


def _within(page: Page, kind: type[Reasoning] | type[Text], ends: tuple[str, ...]) -> Reading[None]:
    """Words up to one of some texts, which is not read, or to the end, without the white space around them."""
    yield from blanks(page)
    page.keep()
    held = ""
    while piece := (yield from before(page, *ends)):
        page.keep()
        words = (held + piece).rstrip(WHITE)
        held = (held + piece)[len(words) :]
        if words:
            yield kind(words)
