"""Query parameters: a number, a word, or a page of a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from plimsoll_runtime.api.schemas.sampling import invalid


class Listed(Protocol):
    """An item of a list."""

    @property
    def id(self) -> str:
        """The id that clients send as `after`."""


ListedT = TypeVar("ListedT", bound=Listed)


@dataclass(frozen=True, slots=True)
class Page(Generic[ListedT]):
    """Part of a list; `more` says whether items follow."""

    items: list[ListedT]
    more: bool

    @property
    def first_id(self) -> str | None:
        """The id of the first item, None if the page is empty."""
        return self.items[0].id if self.items else None

    @property
    def last_id(self) -> str | None:
        """The id of the last item, None if the page is empty."""
        return self.items[-1].id if self.items else None


def page_of(newest_first: Sequence[ListedT], query: Mapping[str, str], usual: int, most: int) -> Page[ListedT]:
    """Return the page that a query asks for: `order` (newest first unless "asc"), `limit`, `after`. A page has at most
    `most` items, and `usual` items by default. Raises ApiError, also if no item has the id `after`."""
    limit = whole_number(query, "limit", 1, most) or usual
    ordered = list(newest_first)
    if choice(query, "order", ("asc", "desc")) == "asc":
        ordered.reverse()
    start = 0 if (after := query.get("after")) is None else 1 + _place(ordered, after)
    return Page(ordered[start : start + limit], len(ordered) > start + limit)


def whole_number(query: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    """Return a parameter, None if it is missing. Raises ApiError unless it is an integer from `least` to `most`."""
    given = query.get(name)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= 18 and least <= int(given) <= most):
        raise invalid(name, f"it must be an integer from {least} to {most}")
    return int(given)


def choice(query: Mapping[str, str], name: str, known: Sequence[str]) -> str | None:
    """Return a parameter, None if it is missing. Raises ApiError if it is not one of `known`."""
    given = query.get(name)
    if given is not None and given not in known:
        raise invalid(name, f"it must be one of {', '.join(known)}")
    return given


def _place(items: Sequence[Listed], wanted: str) -> int:
    for place, item in enumerate(items):
        if item.id == wanted:
            return place
    raise invalid("after", f"no item has the id '{wanted[:100]}'")
