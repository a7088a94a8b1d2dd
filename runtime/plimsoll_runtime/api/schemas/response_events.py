"""The events of a response's stream, each with its number. Names and fields are OpenAI's."""

from __future__ import annotations

import msgspec

from plimsoll_runtime.api.schemas.outputs import ChatLogprob
from plimsoll_runtime.api.schemas.response import OutputItem, OutputText, ReasoningText, Response, SummaryText


class Numbered(msgspec.Struct, kw_only=True, tag_field="type"):
    """Any event. The number is set when the event is sent."""

    sequence_number: int = -1


class OfResponse(Numbered, kw_only=True):
    """An event with the whole response, in its present state."""

    response: Response


class Created(OfResponse, kw_only=True, tag="response.created"):
    """The response was created."""


class Queued(OfResponse, kw_only=True, tag="response.queued"):
    """The background response waits for its model."""


class InProgress(OfResponse, kw_only=True, tag="response.in_progress"):
    """The model generates."""


class Completed(OfResponse, kw_only=True, tag="response.completed"):
    """The response is complete."""


class Incomplete(OfResponse, kw_only=True, tag="response.incomplete"):
    """The response ended at a token limit."""


class Failed(OfResponse, kw_only=True, tag="response.failed"):
    """The response ended with an error."""


class OfItem(Numbered, kw_only=True):
    """An event of item `output_index`."""

    output_index: int


class ItemAdded(OfItem, kw_only=True, tag="response.output_item.added"):
    """An item starts."""

    item: OutputItem


class ItemDone(OfItem, kw_only=True, tag="response.output_item.done"):
    """An item has ended."""

    item: OutputItem


class WithinItem(OfItem, kw_only=True):
    """An event within the item `item_id`."""

    item_id: str


class WithinContent(WithinItem, kw_only=True):
    """An event of part `content_index` of the item's content."""

    content_index: int = 0


class PartAdded(WithinContent, kw_only=True, tag="response.content_part.added"):
    """A part of a content starts."""

    part: OutputText | ReasoningText


class PartDone(WithinContent, kw_only=True, tag="response.content_part.done"):
    """A part of a content has ended."""

    part: OutputText | ReasoningText


class TextDelta(WithinContent, kw_only=True, tag="response.output_text.delta"):
    """More text."""

    delta: str
    logprobs: list[ChatLogprob] = []


class TextDone(WithinContent, kw_only=True, tag="response.output_text.done"):
    """The complete text of a part."""

    text: str
    logprobs: list[ChatLogprob] = []


class ReasoningDelta(WithinContent, kw_only=True, tag="response.reasoning_text.delta"):
    """More reasoning."""

    delta: str


class ReasoningDone(WithinContent, kw_only=True, tag="response.reasoning_text.done"):
    """The complete reasoning of a part."""

    text: str


class WithinSummary(WithinItem, kw_only=True):
    """An event of part `summary_index` of the item's summary."""

    summary_index: int = 0


class SummaryPartAdded(WithinSummary, kw_only=True, tag="response.reasoning_summary_part.added"):
    """A part of a summary starts."""

    part: SummaryText


class SummaryPartDone(WithinSummary, kw_only=True, tag="response.reasoning_summary_part.done"):
    """A part of a summary has ended."""

    part: SummaryText


class SummaryDelta(WithinSummary, kw_only=True, tag="response.reasoning_summary_text.delta"):
    """More of a summary."""

    delta: str


class SummaryDone(WithinSummary, kw_only=True, tag="response.reasoning_summary_text.done"):
    """The complete text of a part of a summary."""

    text: str


class ArgumentsDelta(WithinItem, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a tool call's arguments."""

    delta: str


class ArgumentsDone(WithinItem, kw_only=True, tag="response.function_call_arguments.done"):
    """The complete arguments of a tool call."""

    name: str
    arguments: str


class ErrorEvent(Numbered, kw_only=True, tag="error"):
    """Ends a stream that failed before there was a response."""

    code: str | None
    message: str
    param: str | None


ENDS = Completed, Incomplete, Failed
"""The last event of a stream is one of these."""

ResponseEvent = (
    Created
    | Queued
    | InProgress
    | Completed
    | Incomplete
    | Failed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | SummaryPartAdded
    | SummaryPartDone
    | SummaryDelta
    | SummaryDone
    | ArgumentsDelta
    | ArgumentsDone
    | ErrorEvent
)
