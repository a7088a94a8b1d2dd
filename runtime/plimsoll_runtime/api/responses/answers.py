"""The answer to a request for a response: its items as they grow, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plimsoll_runtime.api.chat.reading import AnswerReader
from plimsoll_runtime.api.generating.generation import Generation
from plimsoll_runtime.api.generating.logprobs import chat_logprobs
from plimsoll_runtime.api.generating.pieces import Piece
from plimsoll_runtime.api.generating.usage import UsageMeter
from plimsoll_runtime.api.responses.draft import Draft
from plimsoll_runtime.api.responses.output import Events, Output
from plimsoll_runtime.api.schemas.answers import ChatLogprob
from plimsoll_runtime.api.schemas.response import InputTokensDetails, OutputTokensDetails, Response, ResponseUsage
from plimsoll_runtime.api.schemas.response_events import Completed, Created, Incomplete, InProgress, Numbered
from plimsoll_runtime.tools.base import Arguments, CallBegins, Part, Reasoning, Text


class ResponseAnswers:
    """The one answer to a request. In a stream that the client waits for, the response's beginning comes first."""

    def __init__(
        self, draft: Draft, output: Output, reader: Callable[[], AnswerReader], job: Generation, meter: UsageMeter
    ) -> None:
        self._draft = draft
        self._output = output
        self._reader = reader()
        self._tokenizer = job.model.tokenizer
        self._meter = meter

    def add(self, piece: Piece) -> None:
        """Take what a step added to the whole."""
        for _ in self._taken(piece):
            pass

    def whole(self) -> Response:
        """It has ended."""
        return self._draft.response(
            "completed" if self._is_complete else "incomplete", self._output.items, self._usage()
        )

    def events(self, piece: Piece) -> Sequence[Numbered]:
        """What a step adds to a stream."""
        first = [] if self._reader.begun else self._beginning()
        return [*first, *self._taken(piece)]

    def last(self) -> Sequence[Numbered]:
        """What ends a stream."""
        whole = self.whole()
        return [Completed(response=whole) if self._is_complete else Incomplete(response=whole)]

    def _beginning(self) -> list[Numbered]:
        begun = InProgress(response=self._draft.response("in_progress"))
        return [begun] if self._draft.body.background else [Created(response=begun.response), begun]

    @property
    def _is_complete(self) -> bool:
        return self._reader.finish_reason != "length"

    def _taken(self, piece: Piece) -> Events:
        told = self._told(piece)
        parts = self._reader.push(piece.delta)
        words = [index for index, part in enumerate(parts) if isinstance(part, Text)]
        for index, part in enumerate(parts):
            yield from self._said(part, told if words and index == words[-1] else ())
        if not parts and told and self._output.in_words:
            yield from self._output.words("", told)
        if piece.delta.finish_reason is not None:
            yield from self._output.finish("completed" if self._is_complete else "incomplete")

    def _told(self, piece: Piece) -> list[ChatLogprob]:
        if not piece.logprobs or not self._draft.body.tells_logprobs:
            return []
        return chat_logprobs(piece.logprobs, self._tokenizer).content

    def _said(self, part: Part, told: Sequence[ChatLogprob]) -> Events:
        match part:
            case Text(text):
                return self._output.words(text, told)
            case Reasoning(text):
                return self._output.thoughts(text)
            case CallBegins(index, name):
                return self._output.call(self._reader.calls[index].id, name)
            case Arguments(_, text):
                return self._output.arguments(text)

    def _usage(self) -> ResponseUsage:
        meter = self._meter
        return ResponseUsage(
            meter.prompt_tokens,
            InputTokensDetails(meter.cached_tokens),
            meter.completion_tokens,
            OutputTokensDetails(meter.reasoning_tokens or 0),
            meter.prompt_tokens + meter.completion_tokens,
        )
