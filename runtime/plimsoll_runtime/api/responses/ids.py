"""The ids of responses and of what they are made of: from each it can be told where the response is kept.

A response's id has the place that made it, as the gateway calls it, and 128 random bits. An item's id has its
response's behind its kind, and its number there: whoever refers to an item says by that which response has it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

PLACE_HEADER = "x-plimsoll-place"
"""By which a gateway says what it calls this server. It is a hint for the gateway alone: here it means nothing."""
NOWHERE = "0" * 12
"""The place of a server that nobody has called anything."""
_PLACE = re.compile(r"[0-9a-f]{12}")
_ITEM = re.compile(r"(?:msg|fc|fco|rs)_([0-9a-f]{44})([0-9a-f]{1,6})")


def response_id(headers: Mapping[str, str]) -> str:
    """A new one, for a request with these headers."""
    place = headers.get(PLACE_HEADER, "")
    return f"resp_{place if _PLACE.fullmatch(place) else NOWHERE}{uuid.uuid4().hex}"


def item_id(kind: str, response: str, number: int) -> str:
    """Of item `number` of a response, counted from the first of its input to the last of its output."""
    return f"{kind}_{response.removeprefix('resp_')}{number:x}"


def response_of_item(text: str) -> str | None:
    """The id of the response that has the item; None for what is no item's id of ours."""
    found = _ITEM.fullmatch(text)
    return None if found is None else f"resp_{found[1]}"
