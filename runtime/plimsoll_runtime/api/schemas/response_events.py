"""The events of a response's stream. Each has its number there; names and fields are OpenAI's."""

from __future__ import annotations

import msgspec

from plimsoll_runtime.api.schemas.outputs import ChatLogprob
from plimsoll_runtime.api.schemas.response import OutputItem, OutputText, ReasoningText, Response, SummaryText


class Numbered(msgspec.Struct, kw_only=True, tag_field="type"):
    """Any event. The number is set when its turn has come."""

    sequence_number: int = -1


class OfResponse(Numbered, kw_only=True):
    """Of the whole response, as it is now."""

    response: Response


class Created(OfResponse, kw_only=True, tag="response.created"):
    """It begins."""


class Queued(OfResponse, kw_only=True, tag="response.queued"):
    """It waits, in the background."""


class InProgress(OfResponse, kw_only=True, tag="response.in_progress"):
    """The model answers."""


class Completed(OfResponse, kw_only=True, tag="response.completed"):
    """The end."""


class Incomplete(OfResponse, kw_only=True, tag="response.incomplete"):
    """The end, cut by a bound."""


class Failed(OfResponse, kw_only=True, tag="response.failed"):
    """The end, by an error."""


class OfItem(Numbered, kw_only=True):
    """Of item `output_index`."""

    output_index: int


class ItemAdded(OfItem, kw_only=True, tag="response.output_item.added"):
    """An item begins."""

    item: OutputItem


class ItemDone(OfItem, kw_only=True, tag="response.output_item.done"):
    """An item has ended."""

    item: OutputItem


class WithinItem(OfItem, kw_only=True):
    """Of something within that item."""

    item_id: str


class WithinContent(WithinItem, kw_only=True):
    """Of part `content_index` of its content."""

    content_index: int = 0


class PartAdded(WithinContent, kw_only=True, tag="response.content_part.added"):
    """A part of a content begins."""

    part: OutputText | ReasoningText


class PartDone(WithinContent, kw_only=True, tag="response.content_part.done"):
    """A part of a content has ended."""

    part: OutputText | ReasoningText


class TextDelta(WithinContent, kw_only=True, tag="response.output_text.delta"):
    """More words."""

    delta: str
    logprobs: list[ChatLogprob] = []


class TextDone(WithinContent, kw_only=True, tag="response.output_text.done"):
    """All words of a part."""

    text: str
    logprobs: list[ChatLogprob] = []


class ReasoningDelta(WithinContent, kw_only=True, tag="response.reasoning_text.delta"):
    """More thoughts."""

    delta: str


class ReasoningDone(WithinContent, kw_only=True, tag="response.reasoning_text.done"):
    """All thoughts of a part."""

    text: str


class WithinSummary(WithinItem, kw_only=True):
    """Of part `summary_index` of its summary."""

    summary_index: int = 0


class SummaryPartAdded(WithinSummary, kw_only=True, tag="response.reasoning_summary_part.added"):
    """A part of a summary begins."""

    part: SummaryText


class SummaryPartDone(WithinSummary, kw_only=True, tag="response.reasoning_summary_part.done"):
    """A part of a summary has ended."""

    part: SummaryText


class SummaryDelta(WithinSummary, kw_only=True, tag="response.reasoning_summary_text.delta"):
    """More of a summary."""

    delta: str


class SummaryDone(WithinSummary, kw_only=True, tag="response.reasoning_summary_text.done"):
    """All of a part of a summary."""

    text: str


class ArgumentsDelta(WithinItem, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(WithinItem, kw_only=True, tag="response.function_call_arguments.done"):
    """All arguments of a call."""

    name: str
    arguments: str


class ErrorEvent(Numbered, kw_only=True, tag="error"):
    """What ends a stream that has begun before there was a response."""

    code: str | None
    message: str
    param: str | None


ENDS = Completed, Incomplete, Failed
"""After one of these nothing follows."""

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
