"""Builds the response to a request: its fixed fields, its growing items, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from plimsoll_runtime.api.chat.output_reader import AnswerReader
from plimsoll_runtime.api.generation.choices import Piece, UsageMeter
from plimsoll_runtime.api.generation.generation import Generation
from plimsoll_runtime.api.generation.logprobs import chat_logprobs
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.responses.output import Events, Output
from plimsoll_runtime.api.schemas.outputs import ChatLogprob, CompletionTokensDetails
from plimsoll_runtime.api.schemas.response import (
    IncompleteDetails,
    InputTokensDetails,
    OutputItem,
    ReasoningSettings,
    Response,
    ResponseError,
    ResponseStatus,
    ResponseUsage,
    TextSettings,
)
from plimsoll_runtime.api.schemas.response_events import Completed, Created, Incomplete, InProgress, Numbered
from plimsoll_runtime.api.schemas.response_request import ResponseRequest, TextConfig
from plimsoll_runtime.tools.base import Arguments, CallBegins, Part, Reasoning, Text

_USUAL = 1.0
"""Default of temperature and top_p if neither request nor model sets them."""


@dataclass(slots=True)
class Draft:
    """A response in progress. `model` is the name in the request, and the model's first name once the model is
    known; `recommended` are that model's sampling defaults."""

    id: str
    body: ResponseRequest
    model: str
    created_at: int
    recommended: Mapping[str, float] = field(default_factory=dict)

    def response(
        self,
        status: ResponseStatus,
        output: Sequence[OutputItem] = (),
        usage: ResponseUsage | None = None,
        *,
        error: ResponseError | None = None,
    ) -> Response:
        """Return the response with this status, output, usage and error."""
        body = self.body
        ended = status in ("completed", "incomplete")
        return Response(
            id=self.id,
            created_at=self.created_at,
            status=status,
            background=bool(body.background),
            completed_at=int(time.time()) if ended else None,
            error=error,
            incomplete_details=IncompleteDetails("max_output_tokens") if status == "incomplete" else None,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            model=self.model,
            output=list(output),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            prompt_cache_key=body.prompt_cache_key,
            reasoning=self._reasoning(),
            safety_identifier=body.safety_identifier,
            service_tier="default",
            store=body.stored,
            temperature=self._sampled_at("temperature"),
            text=self._text(),
            tool_choice=self._tool_choice(),
            tools=[tool.told() for tool in body.tools or ()],
            top_logprobs=body.top_logprobs or 0,
            top_p=self._sampled_at("top_p"),
            truncation=body.truncation or "disabled",
            user=body.user,
            metadata=body.metadata or {},
            usage=usage,
        )

    def failed(self, error: ApiError, output: Sequence[OutputItem] = ()) -> Response:
        """Return the response after an error."""
        of_client = error.status < HTTPStatus.INTERNAL_SERVER_ERROR
        told = ResponseError("invalid_prompt" if of_client else "server_error", error.message)
        return self.response("failed", output, error=told)

    def _sampled_at(self, name: str) -> float:
        given: float | None = getattr(self.body, name)
        return self.recommended.get(name, _USUAL) if given is None else given

    def _reasoning(self) -> ReasoningSettings:
        given = self.body.reasoning
        return ReasoningSettings(None, None) if given is None else ReasoningSettings(given.effort, given.summarised)

    def _text(self) -> TextSettings:
        given = self.body.text or TextConfig()
        form = {"type": "text"} if given.format is None else given.format.model_dump(by_alias=True, exclude_none=True)
        return TextSettings(form, given.verbosity or "medium")

    def _tool_choice(self) -> str | dict[str, Any]:
        choice = self.body.tool_choice
        if choice is None or isinstance(choice, str):
            return choice or "auto"
        told: dict[str, Any] = choice.told()
        return told


class ResponseAnswers:
    """The output of a request. Streams of requests that do not run in the background start with `response.created`."""

    def __init__(
        self, draft: Draft, output: Output, reader: Callable[[], AnswerReader], job: Generation, meter: UsageMeter
    ) -> None:
        self._draft = draft
        self._output = output
        self._reader = reader()
        self._tokenizer = job.model.tokenizer
        self._meter = meter

    def add(self, piece: Piece) -> None:
        """Add a step's output to the response."""
        for _ in self._taken(piece):
            pass

    def whole(self) -> Response:
        """Return the complete response."""
        return self._draft.response(
            "completed" if self._is_complete else "incomplete", self._output.items, self._usage()
        )

    def events(self, piece: Piece) -> Sequence[Numbered]:
        """Return the stream's events for a step's output."""
        first = [] if self._reader.begun else self._beginning()
        return [*first, *self._taken(piece)]

    def last(self) -> Sequence[Numbered]:
        """Return the events that end a stream."""
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
            CompletionTokensDetails(meter.reasoning_tokens or 0),
            meter.prompt_tokens + meter.completion_tokens,
        )
