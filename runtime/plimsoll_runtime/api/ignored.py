"""Tells a client which fields of its messages were left aside, in a header of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from plimsoll_runtime.api.schemas.chat import ChatMessage

HEADER = "X-Plimsoll-Ignored"
LIMIT = 1024
"""Bytes of the header's value."""
_MORE = "..."
_LONGEST = 80
"""Characters of a path, 12 bytes each at worst."""


def ignored_headers(messages: Sequence[ChatMessage]) -> dict[str, str]:
    """The header with the paths of ignored fields, none where there are none.

    `messages[0].mood, messages[3].content[1].%C3%A4`: all but letters, digits and `[]._-~` is escaped as in a URL, and
    what does not fit in `LIMIT` is cut to "...".
    """
    shown: list[str] = []
    room = LIMIT - len(_MORE)
    for path in (path for index, message in enumerate(messages) for path in message.ignored(f"messages[{index}]")):
        entry = quote(path[:_LONGEST], safe="[]", errors="replace") + (_MORE if len(path) > _LONGEST else "")
        room -= len(entry) + len(", ")
        if room < 0:
            shown.append(_MORE)
            break
        shown.append(entry)
    return {HEADER: ", ".join(shown)} if shown else {}
