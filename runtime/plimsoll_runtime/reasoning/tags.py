"""Thoughts between two tags, at the beginning of an answer: what nearly all models write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll_runtime.reasoning.base import Marks
from plimsoll_runtime.tools.base import Reasoning, Text
from plimsoll_runtime.tools.stream_reader import (
    WHITE,
    Ended,
    Page,
    PartReader,
    Reading,
    ahead,
    all_of,
    before,
    blanks,
    either,
)


@dataclass(frozen=True, slots=True)
class TagFormat:
    """Such a format. A template has it where all of one of `signs` stand in it.

    - `leads`: what a prompt may have behind the tag that begins a thought.
    - `wraps`: pairs of what models write around the answer proper, which is left out.
    """

    name: str
    marks: Marks
    signs: tuple[tuple[str, ...], ...]
    wraps: tuple[tuple[str, str], ...] = ()
    leads: tuple[str, ...] = ()
    efforts: Sequence[str] | None = None

    def fits(self, template: str) -> bool:
        """Whether its signs stand in a chat template."""
        return any(all(sign in template for sign in signs) for signs in self.signs)

    def opened_by(self, prompt: str) -> bool:
        """Whether the prompt's last word begins a thought."""
        ends = (self.marks.begin, *(self.marks.begin + lead for lead in self.leads))
        return prompt.rstrip(WHITE).endswith(ends)

    def shown(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """As it is."""
        return message

    def parser(self, *, opened: bool) -> PartReader:
        """White space around a thought is left out."""
        page = Page()
        return PartReader(page, _answer(page, self, opened=opened))


def tagged(
    name: str,
    begin: str,
    end: str,
    *,
    gap: str = "\n\n",
    signs: tuple[tuple[str, ...], ...] = (),
    implied: tuple[str, ...] = (),
    wraps: tuple[tuple[str, str], ...] = (),
    leads: tuple[str, ...] = (),
) -> TagFormat:
    """A format whose tags stand on lines of their own."""
    marks = Marks(begin, end, closing=f"\n{end}", gap=gap, implied=implied)
    return TagFormat(name, marks, signs or ((end,),), wraps, leads)


def _answer(page: Page, form: TagFormat, *, opened: bool) -> Reading[None]:
    try:
        if opened or (yield from _begun(page, form.marks.begin)):
            yield from _thought(page, form)
        yield from _rest(page, form)
    except Ended:  # all words were told before; what is left is white space
        page.at = len(page.text)
        page.keep()


def _begun(page: Page, *tags: str) -> Reading[str]:
    """The tag that stands behind white space, both of them left out; empty where none does."""
    found = yield from ahead(page, *tags)
    page.keep()
    return found


def _thought(page: Page, form: TagFormat) -> Reading[None]:
    """A thought up to its end, and the white space behind it. Some models begin one that the prompt has begun."""
    ends = (form.marks.end, *form.marks.implied)
    yield from _begun(page, form.marks.begin)
    yield from _within(page, Reasoning, ends)
    found = yield from either(page, *ends)
    if found in form.marks.implied:
        page.at -= len(found)
    else:
        yield from blanks(page)
    page.keep()


def _rest(page: Page, form: TagFormat) -> Reading[None]:
    ends = dict(form.wraps)
    if ends and (begin := (yield from _begun(page, *ends))):
        yield from _within(page, Text, (ends[begin],))
        yield from either(page, ends[begin])
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
