"""What a connection tells of whoever sent a request: whether all of it has come, and whether he has hung up.

ASGI tells both by messages, for which somebody has to wait: a task for each request, and a timer for each piece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from plimsoll_gateway.proxy.body import Message

EXTENSION = "plimsoll.caller"
"""Under this name among a scope's extensions, beside the fields of the head by their names. A server that is not ours
has none."""


NOTHING: Mapping[str, Any] = {}


class Caller:
    """One request's: `all_here` once its body has come to its end, `gone` once its connection has."""

    def __init__(self, listen: Callable[[], None]) -> None:
        """`listen` makes the connection read on, which it may not do since the body came."""
        self._listen = listen
        self.all_here = False
        self.gone = False
        self._told: Callable[[], None] | None = None

    def tell(self, told: Callable[[], None] | None) -> None:
        """Call that when he hangs up; None for nobody."""
        self._told = told
        if told is not None:
            self._listen()

    def hang_up(self) -> None:
        """The connection has ended."""
        self.gone = True
        if self._told is not None:
            self._told()


def fields_of(scope: Message) -> dict[bytes, bytes]:
    """The headers of a request by their names, in lower case; of two of one name the last."""
    found = scope.get("extensions", NOTHING).get(EXTENSION, NOTHING).get("fields")
    return found if isinstance(found, dict) else dict(scope["headers"])


def caller_of(scope: Message) -> Caller | None:
    """That of a request; None where the server does not tell."""
    found = scope.get("extensions", NOTHING).get(EXTENSION, NOTHING).get("caller")
    return found if isinstance(found, Caller) else None
