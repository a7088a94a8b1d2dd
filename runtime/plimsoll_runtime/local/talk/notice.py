"""What a person should know of a model before talking to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from plimsoll_runtime.errors import UNREADABLE
from plimsoll_runtime.local.talk.stream import AskError, Server

LONGEST = 300
"""Characters that are shown of what a server says: it may be anybody's."""
NO_TEMPLATE = "it has no chat template, so a server of ours refuses chats with it; /v1/completions continues text"


async def notice(session: aiohttp.ClientSession, server: Server, model: str) -> str | None:
    """A line about the model, as its server's list of models has it; None where that says nothing of the kind.

    Raises AskError if the server does not answer.
    """
    try:
        async with session.get(f"{server.url}/v1/models/{quote(model, safe='')}", headers=server.headers) as response:
            text = await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise AskError(f"{server.url} does not answer: {error or type(error).__name__}") from error
    return _told(_card(text)) if response.status == 200 else None


def _card(text: bytes) -> Mapping[str, Any]:
    """The card; an empty one for what is none of ours."""
    try:
        card = msgspec.json.decode(text)
    except UNREADABLE:
        return {}
    return card if isinstance(card, dict) else {}


def _told(card: Mapping[str, Any]) -> str | None:
    about, abilities, task = card.get("about"), card.get("abilities"), card.get("task")
    if isinstance(about, str) and about:
        return "".join(char if char.isprintable() else " " for char in about)[:LONGEST]
    if task == "generate" and isinstance(abilities, list) and "chat" not in abilities:
        return NO_TEMPLATE
    return None
