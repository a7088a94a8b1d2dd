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


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Body(msgspec.Struct):
    """`data` and `results` are of answers that have vectors, scores, ranks or labels."""

    usage: _Usage
    choices: list[_Choice] = []
    data: list[msgspec.Raw] = []
    results: list[msgspec.Raw] = []

    @property
    def rows(self) -> list[_Choice]:
        """Its choices; what is none, as JSON."""
        others = enumerate(self.data or self.results)
        return self.choices or [_Choice(index, text=bytes(each).decode()) for index, each in others]


class _Response(msgspec.Struct):
    body: _Body


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response


_decoder = msgspec.json.Decoder(_Line)


def rows_of(line: bytes) -> list[dict[str, Any]]:
    """A row for each choice, vector, score or label. The tokens are those of all its choices."""
    answer = _decoder.decode(line)
    usage = answer.response.body.usage
    return [
        {
            "custom_id": answer.custom_id,
            "choice": choice.index,
            "text": choice.words,
            "finish_reason": choice.finish_reason,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
        }
        for choice in answer.response.body.rows
    ]
