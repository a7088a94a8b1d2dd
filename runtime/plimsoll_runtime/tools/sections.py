"""Calls that stand in a list, or in a section, where each is behind a marker of its own."""

from __future__ import annotations

from collections.abc import Callable

from plimsoll_runtime.tools.answer import Calls
from plimsoll_runtime.tools.reading import Page, Reading, blanks, either, expect

MOST_NAME = 256
"""Characters of what may stand where a name is expected."""


def listed(page: Page, calls: Calls, read: Callable[[Page, Calls], Reading[None]]) -> Reading[None]:
    """Calls with commas between them, behind a bracket that was read, up to the one that ends them, which is read."""
    end = ","
    while end == ",":
        yield from blanks(page)
        yield from read(page, calls)
        page.keep()
        yield from blanks(page)
        end = yield from expect(page, ",", "]")


def section(
    page: Page, calls: Calls, read: Callable[[Page, Calls], Reading[None]], *, begin: str, end: str
) -> Reading[None]:
    """Calls, each after `begin`, up to `end`, which may be missing."""
    yield from blanks(page)
    found = yield from expect(page, begin)
    while found == begin:
        yield from read(page, calls)
        page.keep()
        yield from blanks(page)
        found = yield from either(page, begin, end)
    if not found:
        page.at = page.kept
