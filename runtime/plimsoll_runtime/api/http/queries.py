"""What stands behind the ? of a path: a number, a word, or which page of a list is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from plimsoll_runtime.api.schemas.sampling import invalid


class Listed(Protocol):
    """An item of a list."""

    @property
    def id(self) -> str:
        """By which a client says after which item a page begins."""


ListedT = TypeVar("ListedT", bound=Listed)


@dataclass(frozen=True, slots=True)
class Page(Generic[ListedT]):
    """Part of a list; `more`: whether items follow it."""

    items: list[ListedT]
    more: bool

    @property
    def first_id(self) -> str | None:
        """That of its first item."""
        return self.items[0].id if self.items else None

    @property
    def last_id(self) -> str | None:
        """That of its last item."""
        return self.items[-1].id if self.items else None


class PageQuery:
    """Which part of a list is asked for: `order` (the newest first, unless "asc"), `limit`, `after`."""

    def __init__(self, query: Mapping[str, str], usual: int, most: int) -> None:
        """A page has `most` items at most, and the `usual` number where the query says none. Raises ApiError."""
        self._limit = whole_number(query, "limit", 1, most) or usual
        self._ascending = choice(query, "order", ("asc", "desc")) == "asc"
        self._after = query.get("after")

    def page(self, newest_first: Sequence[ListedT]) -> Page[ListedT]:
        """That part of all items. Raises ApiError where none has the id that the page is to begin after."""
        ordered = list(reversed(newest_first)) if self._ascending else list(newest_first)
        start = 0 if self._after is None else 1 + _place(ordered, self._after)
        end = start + self._limit
        return Page(ordered[start:end], len(ordered) > end)


def whole_number(query: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    """None where it is not there. Raises ApiError."""
    given = query.get(name)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= 18 and least <= int(given) <= most):
        raise invalid(name, f"must be a whole number from {least} to {most}")
    return int(given)


def choice(query: Mapping[str, str], name: str, known: Sequence[str]) -> str | None:
    """None where it is not there. Raises ApiError."""
    given = query.get(name)
    if given is not None and given not in known:
        raise invalid(name, f"must be one of {', '.join(known)}")
    return given


def _place(items: Sequence[Listed], wanted: str) -> int:
    for place, item in enumerate(items):
        if item.id == wanted:
            return place
    raise invalid("after", f"no item has the id '{wanted[:100]}'")
