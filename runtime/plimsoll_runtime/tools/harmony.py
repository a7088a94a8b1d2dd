"""Messages as gpt-oss writes them (OpenAI's Harmony): a header with a channel and a recipient, then what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from plimsoll_runtime.tools.reading import Page, Reading, until

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
THOUGHT = f"{CHANNEL}analysis"
"""What a thought begins with, which is its channel. Chat templates of gpt-oss have it."""
RECIPIENT = "to="
FUNCTIONS = "functions."

MOST_HEADER = 512
"""Characters of what may stand where a header is expected."""

_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*([a-z]+)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")


@dataclass(frozen=True, slots=True)
class Header:
    """What a message says of itself; `text` is all of it, as it stands there."""

    text: str
    channel: str
    recipient: str

    @property
    def function(self) -> str | None:
        """The name of the function that the message calls."""
        return self.recipient.removeprefix(FUNCTIONS) if self.recipient.startswith(FUNCTIONS) else None


def header(page: Page, begin: str) -> Reading[Header]:
    """What stands up to the message, both read; `begin` was read before. Raises Ended and NoCall."""
    text, end = yield from until(page, MESSAGE, most=MOST_HEADER)
    own = (begin + text).rpartition(START)[2]  # one before it may have ended without a message
    channel, recipient = _CHANNEL.search(own), _RECIPIENT.search(own)
    return Header(begin + text + end, channel[1] if channel else "", recipient[1] if recipient else "")
