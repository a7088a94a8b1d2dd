"""What /v1/messages answers: whole, or in events. Field names and nulls are Anthropic's."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class BlockText(msgspec.Struct, tag_field="type", tag="text"):
    """Words for the user."""

    text: str


class BlockThinking(msgspec.Struct, tag_field="type", tag="thinking"):
    """What the model thought. The signature is for clients that want one; nobody looks at it here."""

    thinking: str
    signature: str


class BlockToolUse(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


Content = BlockText | BlockThinking | BlockToolUse


class ThinkingTokens(msgspec.Struct):
    """How many of the generated tokens were thoughts, with what marks them."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct):
    """What a request took. The prompt's tokens are `input_tokens`, and those that came out of the prefix cache. Details
    of what was generated are told of models that think.
    """

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens | msgspec.UnsetType = msgspec.UNSET


class MessageAnswer(msgspec.Struct, tag_field="type", tag="message"):
    """An answer; the usage stands last, after whatever a model may have written."""

    id: str
    role: Literal["assistant"]
    model: str
    content: list[Content]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    """The first event of a stream: the message without content."""

    message: MessageAnswer


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """A block of content begins, empty."""

    index: int
    content_block: Content


class MoreText(msgspec.Struct, tag_field="type", tag="text_delta"):
    """More of a text."""

    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """More of a thought."""

    thinking: str


class MoreSignature(msgspec.Struct, tag_field="type", tag="signature_delta"):
    """The end of a thought."""

    signature: str


class MoreInput(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """More of a call's input. All of it together is a JSON object, as text."""

    partial_json: str


More = MoreText | ThinkingDelta | MoreSignature | MoreInput


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: More


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """The end of a block."""

    index: int


class Stopped(msgspec.Struct):
    """Why an answer ended."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """What is known at the end."""

    delta: Stopped
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    """The last event of a stream."""


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """Something to keep a connection open."""


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping


class TokenCount(msgspec.Struct):
    """How many tokens a model would read."""

    input_tokens: int


class AnthropicErrorDetails(msgspec.Struct):
    """What was wrong, for programs."""

    error_code: str | None


class AnthropicErrorBody(msgspec.Struct):
    """What was wrong and what to do."""

    type: str
    message: str
    details: AnthropicErrorDetails


class AnthropicError(msgspec.Struct, tag_field="type", tag="error"):
    """What is answered with any status from 400 on; in a stream that has begun, its last event."""

    error: AnthropicErrorBody
    request_id: str | None


class AnthropicModel(msgspec.Struct, tag_field="type", tag="model"):
    """A name that requests may use. Its lengths are null for a model that was never loaded yet."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    max_tokens: int | None
    lifecycle: Literal["active"] = "active"


class AnthropicModels(msgspec.Struct):
    """A page of names."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None
