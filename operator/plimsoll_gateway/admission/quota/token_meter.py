"""Counts the tokens of a response while it passes through the gateway.

If the response reports `usage` (at its end, or in the last event of a stream that requested it), that counts. Otherwise
the estimated prompt counts, and one token for each event of a stream, the least an event can have.
"""

from __future__ import annotations

import re

# Quotes within a text of the output would be escaped. JSON that a model writes (the input of a tool in Anthropic's
# format) precedes the usage: the last match counts.
_USAGE = b'"usage"'
_TOTAL = re.compile(rb'"total_tokens"\s*:\s*(\d{1,12})')
_PART = re.compile(rb'"(?:(?:cache_creation_|cache_read_)?input|output)_tokens"\s*:\s*(\d{1,12})')
_EVENT = b"data: {"
TAIL = 2048


class Meter:
    """Counts the tokens of one response. `prompt`: estimated tokens of the request's prompt.

    An error or a missing response uses nothing. If the client left before the response began, the prompt counts.
    """

    def __init__(self, prompt: int) -> None:
        self._prompt = prompt
        self._events = 0
        self._tail = b""
        self._begun = False
        self._awaited = False  # a replica has the request, but its response has not begun
        self.sent = 0  # number of replicas that the request was sent to

    def sending(self) -> None:
        """Record that the request is being sent to a replica."""
        self.sent += 1
        self._awaited = True

    def not_sent(self) -> None:
        """Record that no connection to the replica was made."""
        self.sent -= 1
        self.failed()

    def failed(self) -> None:
        """Record that the replica sent no response."""
        self._awaited = False

    def begin(self, status: int) -> None:
        """Record the start of a response with this status."""
        self._begun = status < 400
        self._awaited = False

    def read(self, chunk: bytes, *, events: bool) -> None:
        """Read a chunk of the response body; `events`: it is a stream of server-sent events."""
        if events:
            self._events += chunk.count(_EVENT)
        self._tail = chunk[-TAIL:] if len(chunk) >= TAIL else (self._tail + chunk)[-TAIL:]

    def tokens(self) -> int:
        """Return the tokens counted so far."""
        if not self._begun:
            return self._prompt if self._awaited else 0
        told = _told(self._tail)
        return self._prompt + self._events if told is None else told


def _told(tail: bytes) -> int | None:
    """Return the total of the usage at the end of a response, or the sum of its parts (Anthropic's format); None
    without one.
    """
    usage = tail[tail.rfind(_USAGE) :] if _USAGE in tail else b""
    if totals := _TOTAL.findall(usage):
        return int(totals[-1])
    parts = _PART.findall(usage)
    return sum(map(int, parts)) if parts else None
