"""Responses, their items, lists of items and deletions, as the API returns them. Field names and nulls are OpenAI's."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from plimsoll_runtime.api.schemas.outputs import ChatLogprob, CompletionTokensDetails

Status = Literal["in_progress", "completed", "incomplete"]


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    """A text of the input."""

    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """A text of the output. It has no annotations, and log probabilities only if requested."""

    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[ChatLogprob] = []


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    """A message of any role."""

    id: str
    role: Literal["system", "developer", "user", "assistant"]
    content: list[InputText | OutputText]
    status: Status = "completed"


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """A tool call. `arguments` are a JSON object as text, or the start of one that was cut off."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Status = "completed"


class FunctionOutputItem(msgspec.Struct, tag_field="type", tag="function_call_output"):
    """The result of a tool call."""

    id: str
    call_id: str
    output: str | list[InputText]
    status: Status = "completed"


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text"):
    """Reasoning, if a summary was requested."""

    text: str


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """Reasoning."""

    text: str


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """The model's reasoning. `encrypted_content` is always null: reasoning is not encrypted."""

    id: str
    summary: list[SummaryText]
    content: list[ReasoningText]
    encrypted_content: None = None
    status: Status = "completed"


Item = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem
OutputItem = MessageItem | FunctionCallItem | ReasoningItem

ResponseStatus = Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]


class InputTokensDetails(msgspec.Struct):
    """How many prompt tokens came from the prefix cache. Writing to the cache is free and not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: CompletionTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    """Why a response ended early."""

    reason: str


class TextSettings(msgspec.Struct):
    """The requested format and verbosity of the output."""

    format: dict[str, Any]
    verbosity: str


class ReasoningSettings(msgspec.Struct):
    """The requested reasoning effort, and the kind of summary, if any."""

    effort: str | None
    summary: str | None


class Response(msgspec.Struct, tag_field="object", tag="response"):
    """One turn of a conversation: the request's settings and the output. The usage is the last field, because
    gateways look for it at the end."""

    id: str
    created_at: int
    status: ResponseStatus
    background: bool
    completed_at: int | None
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningSettings
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: TextSettings
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    user: str | None
    metadata: dict[str, str]
    usage: ResponseUsage | None


class ItemList(msgspec.Struct, tag_field="object", tag="list"):
    """A page of items."""

    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(msgspec.Struct, tag_field="object", tag="response.input_tokens"):
    """How many tokens the model would read."""

    input_tokens: int


class DeletedResponse(msgspec.Struct, tag_field="object", tag="response"):
    """A deleted response."""

    id: str
    deleted: bool = True
