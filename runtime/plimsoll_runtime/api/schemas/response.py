"""What is told of responses: themselves, their lists of items, and that one is gone. Field names and nulls are
OpenAI's.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from plimsoll_runtime.api.schemas.response_items import Item, OutputItem

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
