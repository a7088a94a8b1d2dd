"""An answer's line as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

COLUMNS: Mapping[str, type] = {
    "custom_id": str,
    "choice": int,
    "text": str,
    "finish_reason": str,
    "prompt_tokens": int,
    "completion_tokens": int,
}


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: msgspec.Raw | None = None


class _Choice(msgspec.Struct):
    index: int
    finish_reason: str | None = None
    message: _Message | None = None
    text: str | None = None

    @property
    def words(self) -> str | None:
        """What was said; where nothing was but tools were called, the calls as JSON."""
        if self.message is None:
            return self.text
        calls = self.message.tool_calls
        return bytes(calls).decode() if self.message.content is None and calls is not None else self.message.content


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Body(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage = _Usage()
    data: msgspec.Raw | None = None
    results: msgspec.Raw | None = None

    @property
    def all_choices(self) -> list[_Choice]:
        """Of what is no text, what was told in its place, as JSON."""
        told = self.results if self.data is None else self.data
        return self.choices or [_Choice(0, text=None if told is None else bytes(told).decode())]


class _Response(msgspec.Struct):
    body: _Body


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response


_decoder = msgspec.json.Decoder(_Line)


def rows_of(line: bytes) -> list[dict[str, Any]]:
    """A row for each choice; the tokens are those of all of them. Vectors, scores and labels are JSON in `text`."""
    answer = _decoder.decode(line)
    body, usage = answer.response.body, answer.response.body.usage
    return [
        {
            "custom_id": answer.custom_id,
            "choice": choice.index,
            "text": choice.words,
            "finish_reason": choice.finish_reason,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
        }
        for choice in body.all_choices
    ]
