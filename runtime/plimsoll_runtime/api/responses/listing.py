"""A page of the items that a response was made from."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import QueryParams

from plimsoll_runtime.api.http.queries import choice, whole_number
from plimsoll_runtime.api.schemas.response import ItemList
from plimsoll_runtime.api.schemas.response_items import Item
from plimsoll_runtime.api.schemas.sampling import invalid

USUAL, MOST = 20, 100


def page(items: Sequence[Item], query: QueryParams) -> ItemList:
    """As the query says: `order` (the newest first, unless "asc"), `limit`, `after`. Raises ApiError."""
    limit = whole_number(query, "limit", 1, MOST)
    newest_first = choice(query, "order", ("asc", "desc")) != "asc"
    ordered = list(reversed(items)) if newest_first else list(items)
    start = 0
    if (after := query.get("after")) is not None:
        places = [place for place, item in enumerate(ordered) if item.id == after]
        if not places:
            raise invalid("after", f"no item has the id '{after[:100]}'")
        start = places[0] + 1
    shown = ordered[start : start + (USUAL if limit is None else limit)]
    more = start + len(shown) < len(ordered)
    return ItemList(shown, shown[0].id if shown else None, shown[-1].id if shown else None, more)
