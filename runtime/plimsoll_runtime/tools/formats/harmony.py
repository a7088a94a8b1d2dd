"""gpt-oss (OpenAI's Harmony): messages with a channel and a recipient. A call is a message to a function in the channel
`commentary`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_runtime.tools.base import Tool
from plimsoll_runtime.tools.grammar import SpecialId, arguments, marked, one_of, text, words_before
from plimsoll_runtime.tools.json_calls import arguments as read_arguments
from plimsoll_runtime.tools.output_parser import CallFormat, Calls, Style
from plimsoll_runtime.tools.stream_reader import NoCall, Page, Reading, blanks, closing, until

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
THOUGHT = f"{CHANNEL}analysis"
"""Start of a reasoning message: the name of its channel. Chat templates of gpt-oss contain it."""
RECIPIENT = "to="
FUNCTIONS = "functions."

MOST_HEADER = 512
"""Maximum number of characters of a message header."""

_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*([a-z]+)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a message; `text` is its complete text."""

    text: str
    channel: str
    recipient: str

    @property
    def function(self) -> str | None:
        """The name of the called function, or None."""
        return self.recipient.removeprefix(FUNCTIONS) if self.recipient.startswith(FUNCTIONS) else None


def header(page: Page, begin: str) -> Reading[Header]:
    """Read up to the end of a message's header, of which `begin` was read before. Raises Ended at the end of the
    output, and NoCall if the header is longer than MOST_HEADER.
    """
    text, end = yield from until(page, MESSAGE, most=MOST_HEADER)
    own = (begin + text).rpartition(START)[2]  # a header before it may have no message
    channel, recipient = _CHANNEL.search(own), _RECIPIENT.search(own)
    return Header(begin + text + end, channel[1] if channel else "", recipient[1] if recipient else "")


def _write(tools: Sequence[Tool], special_id: SpecialId, *, required: bool, parallel: bool) -> str:
    """Return the grammar: reasoning (and text, unless a call is required), then a call or the final message. There is
    at most one call, because models end an output with it.
    """
    start, channel, message = (marked(marker, special_id) for marker in (START, CHANNEL, MESSAGE))
    constrain = marked(CONSTRAIN, special_id)
    calls = [
        f"{channel} {text(f'commentary to={FUNCTIONS}{tool.name} ')} {constrain} {text('json')} {message} "
        f"{arguments(tool)}"
        for tool in tools
    ]
    before = "analysis*" if required else "(analysis | preamble)*"
    last = "call" if required else "(call | final)"
    return (
        f"start: {before} {last}\n"
        f'analysis: {channel} "analysis" {message} words {start} "assistant"\n'
        f'preamble: {channel} "commentary" {message} words {start} "assistant"\n'
        f'final: {channel} "final" {message} TEXT\n'
        f"{words_before('words', END, special_id)}{one_of(calls)}"
    )


def _read(page: Page, calls: Calls, marker: str) -> Reading[None]:
    found = yield from header(page, marker)
    if found.function is None:
        raise NoCall
    tool = calls.tool(found.function)
    yield from blanks(page)
    yield from read_arguments(page, calls, tool)
    yield from closing(page, CALL, END)


HARMONY = CallFormat("harmony", True, ((THOUGHT,),), Style((START, CHANNEL), _read, opening=(RECIPIENT,)), _write)
"""`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>`, which ends the output.

    Reasoning and text are in separate messages (`reasoning/harmony.py`), also in the grammar.
    """
