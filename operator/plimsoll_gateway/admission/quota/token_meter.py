"""How many tokens an answer took, read from what passes by.

Answers that tell (`usage`, at the end of a whole answer or of a stream that was asked for it) are believed. Of other
streams each event counts as a token, which it has at least.
"""

from __future__ import annotations

import re

# Within a text of the answer the quotes would be escaped. What a model writes as JSON, in Anthropic's form the input of
# a tool, stands before the answer's usage: the last one counts.
_USAGE = b'"usage"'
_TOTAL = re.compile(rb'"total_tokens"\s*:\s*(\d{1,12})')
_PART = re.compile(rb'"(?:(?:cache_creation_|cache_read_)?input|output)_tokens"\s*:\s*(\d{1,12})')
_EVENT = b"data: {"
TAIL = 2048


class Meter:
    """Reads one answer. `prompt` is how many tokens its request was taken for without the answer's.

    An answer that is an error, or that did not come, uses nothing. Where nobody waited for it, the prompt is used.
    """

    def __init__(self, prompt: int) -> None:
        self._prompt = prompt
        self._events = 0
        self._tail = b""
        self._begun = False
        self._awaited = False  # a replica has the request, and its answer has not come
        self.sent = 0  # how many replicas have been sent the request

    def sending(self) -> None:
        """A replica is about to be sent the request."""
        self.sent += 1
        self._awaited = True

    def not_sent(self) -> None:
        """There was no connection to it."""
        self.sent -= 1
        self.failed()

    def failed(self) -> None:
        """No answer came of it."""
        self._awaited = False

    def begin(self, status: int) -> None:
        """An answer of this status begins."""
        self._begun = status < 400
        self._awaited = False

    def read(self, chunk: bytes, *, events: bool) -> None:
        """A piece has passed by."""
        if events:
            self._events += chunk.count(_EVENT)
        self._tail = chunk[-TAIL:] if len(chunk) >= TAIL else (self._tail + chunk)[-TAIL:]

    def tokens(self) -> int:
        """What is known now."""
        if not self._begun:
            return self._prompt if self._awaited else 0
        told = _told(self._tail)
        return self._prompt + self._events if told is None else told


def _told(tail: bytes) -> int | None:
    """What the usage says with which an answer ends: all tokens, or in Anthropic's form the parts of them."""
    usage = tail[tail.rfind(_USAGE) :] if _USAGE in tail else b""
    if totals := _TOTAL.findall(usage):
        return int(totals[-1])
    parts = _PART.findall(usage)
    return sum(map(int, parts)) if parts else None
