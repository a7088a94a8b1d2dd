"""One request and its response, with what the client's connection reports: the body is complete, or the client is gone.

ASGI reports both as messages. Waiting for them would cost a task for each request and a timer for each piece.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from plimsoll_gateway.admission.body_memory import BodyMemory
from plimsoll_gateway.admission.limits import OTHER_BYTES
from plimsoll_gateway.discovery.routing_table import Model
from plimsoll_gateway.errors.refusals import wrong_method
from plimsoll_gateway.keys.api_key import ApiKey
from plimsoll_gateway.proxy.body import MOST_OPTION, Body, Message, Receive, read_body
from plimsoll_gateway.proxy.response_stream import ResponseStream

EXTENSION = "plimsoll.caller"
"""Under this name among a scope's extensions, beside the fields of the head by their names. A server that is not ours
has none."""


NOTHING: Mapping[str, Any] = {}


class ClientConnection:
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


def connection_of(scope: Message) -> ClientConnection | None:
    """That of a request; None where the server does not tell."""
    found = scope.get("extensions", NOTHING).get(EXTENSION, NOTHING).get("caller")
    return found if isinstance(found, ClientConnection) else None


class Exchange:
    """One request and its response, while it is handled."""

    def __init__(self, scope: Message, headers: dict[bytes, bytes], receive: Receive, stream: ResponseStream) -> None:
        self.scope: Any = scope
        self.headers = headers
        self.receive = receive
        self.stream = stream
        self.path: str = scope["path"]
        self.model: Model | None = None
        self.key: ApiKey | None = None
        self.came = time.monotonic()
        self.connection = connection_of(scope)
        self.body_taken = False  # its body is read elsewhere, where the rest is discarded after a refusal
        self.code: int | None = None  # what to count instead of the status that was sent

    async def read_body(self, limits: Mapping[str, int], memory: BodyMemory) -> Body:
        """The body, as `read_body` reads it. `limits` are by path."""
        self.body_taken = True
        connection, limit = self.connection, limits.get(self.path, OTHER_BYTES)
        option = MOST_OPTION if self.path in limits else ""
        if connection is None:
            return await read_body(self.receive, self.headers, limit, memory, option=option)
        return await read_body(
            self.receive, self.headers, limit, memory, all_here=lambda: connection.all_here, option=option
        )

    def allow(self, *methods: str) -> None:
        """Raise Refusal 405 for any other method."""
        if self.scope["method"] not in methods:
            raise wrong_method(self.scope["method"], self.path, ", ".join(methods))
