"""Responses, their items, lists of items and deletions, as the API returns them. Field names and nulls are OpenAI's."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from plimsoll_runtime.api.schemas.outputs import ChatLogprob

Status = Literal["in_progress", "completed", "incomplete"]


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    """A text that somebody gave."""

    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """A text that the model wrote. There are no annotations, and log probabilities only where they were asked for."""

    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[ChatLogprob] = []


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    """A message of anybody."""

    id: str
    role: Literal["system", "developer", "user", "assistant"]
    content: list[InputText | OutputText]
    status: Status = "completed"


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """A call. `arguments` are a JSON object as text, or the beginning of one that was cut."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Status = "completed"


class FunctionOutputItem(msgspec.Struct, tag_field="type", tag="function_call_output"):
    """What a call came to."""

    id: str
    call_id: str
    output: str | list[InputText]
    status: Status = "completed"


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text"):
    """Thoughts, where a summary was asked for."""

    text: str


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """Thoughts."""

    text: str


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """What the model thought before it answered. `encrypted_content` is never there: thoughts are told in the open."""

    id: str
    summary: list[SummaryText]
    content: list[ReasoningText]
    encrypted_content: None = None
    status: Status = "completed"


Item = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem
OutputItem = MessageItem | FunctionCallItem | ReasoningItem

ResponseStatus = Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]


class InputTokensDetails(msgspec.Struct):
    """How many of the prompt's tokens came out of the prefix cache. What is written to it costs nothing, and is not
    counted.
    """

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    """How many of the generated tokens were thoughts."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """What a response took."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct):
    """Why it failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    """Why it ended early."""

    reason: str


class TextSettings(msgspec.Struct):
    """What the answer was to be like."""

    format: dict[str, Any]
    verbosity: str


class ReasoningSettings(msgspec.Struct):
    """How much the model was to think, and whether its thoughts are told as a summary."""

    effort: str | None
    summary: str | None


class Response(msgspec.Struct, tag_field="object", tag="response"):
    """One turn of a conversation: what was asked for and what came of it. The usage is last: a gateway looks for it at
    the end.
    """

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
    """It is kept no more."""

    id: str
    deleted: bool = True
