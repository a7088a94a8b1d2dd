"""Reasoning between two tags at the start of an output, as most models write it."""

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
    """A format with tags. A template uses it if it contains all texts of one member of `signs`.

    - `leads`: texts that a prompt may have after the tag that begins reasoning.
    - `wraps`: pairs of texts that models write around the output for the user; they are removed.
    """

    name: str
    marks: Marks
    signs: tuple[tuple[str, ...], ...]
    wraps: tuple[tuple[str, str], ...] = ()
    leads: tuple[str, ...] = ()
    efforts: Sequence[str] | None = None

    def fits(self, template: str) -> bool:
        return any(all(sign in template for sign in signs) for signs in self.signs)

    def opened_by(self, prompt: str) -> bool:
        """Return whether the prompt ends with the tag that begins reasoning."""
        ends = (self.marks.begin, *(self.marks.begin + lead for lead in self.leads))
        return prompt.rstrip(WHITE).endswith(ends)

    def shown(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        return message

    def parser(self, *, opened: bool) -> PartReader:
        """Return a parser that removes white space around reasoning."""
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
    """Return a format whose tags are on separate lines. Without `signs`, a template uses it if it contains `end`."""
    marks = Marks(begin, end, closing=f"\n{end}", gap=gap, implied=implied)
    return TagFormat(name, marks, signs or ((end,),), wraps, leads)


def _answer(page: Page, form: TagFormat, *, opened: bool) -> Reading[None]:
    try:
        if opened or (yield from _begun(page, form.marks.begin)):
            yield from _thought(page, form)
        yield from _rest(page, form)
    except Ended:  # all text was returned before; only white space is left
        page.at = len(page.text)
        page.keep()


def _begun(page: Page, *tags: str) -> Reading[str]:
    """Skip white space and a tag after it. Return the tag, or "" if there is none."""
    found = yield from ahead(page, *tags)
    page.keep()
    return found


def _thought(page: Page, form: TagFormat) -> Reading[None]:
    """Read reasoning up to its end, and the white space after it. A tag that repeats the prompt's begin tag is
    skipped.
    """
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
    """Read text up to one of `ends` (not included) or the end, without surrounding white space."""
    yield from blanks(page)
    page.keep()
    held = ""
    while piece := (yield from before(page, *ends)):
        page.keep()
        words = (held + piece).rstrip(WHITE)
        held = (held + piece)[len(words) :]
        if words:
            yield kind(words)
