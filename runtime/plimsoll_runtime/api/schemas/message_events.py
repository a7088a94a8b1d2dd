"""Responses and events of /v1/messages. Field names and nulls are Anthropic's."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class BlockText(msgspec.Struct, tag_field="type", tag="text"):
    """Text for the user."""

    text: str


class BlockThinking(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning. The signature exists for clients that need one; the server does not check it."""

    thinking: str
    signature: str


class BlockToolUse(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A tool call."""

    id: str
    name: str
    input: dict[str, Any]


Content = BlockText | BlockThinking | BlockToolUse


class ThinkingTokens(msgspec.Struct):
    """How many generated tokens were reasoning and its markers."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct):
    """Token counts of a request. `input_tokens` excludes prompt tokens from the prefix cache, which are
    `cache_read_input_tokens`. Details of the output exist for models with reasoning."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens | msgspec.UnsetType = msgspec.UNSET


class MessageAnswer(msgspec.Struct, tag_field="type", tag="message"):
    """A message; the usage is the last field, after all text of the model."""

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
    """The start of a content block, which is still empty."""

    index: int
    content_block: Content


class MoreText(msgspec.Struct, tag_field="type", tag="text_delta"):
    """More of a text."""

    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """More of the reasoning."""

    thinking: str


class MoreSignature(msgspec.Struct, tag_field="type", tag="signature_delta"):
    """The signature at the end of the reasoning."""

    signature: str


class MoreInput(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """More of a tool call's input. All of it together is a JSON object, as text."""

    partial_json: str


More = MoreText | ThinkingDelta | MoreSignature | MoreInput


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """More of content block `index`."""

    index: int
    delta: More


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """The end of content block `index`."""

    index: int


class Stopped(msgspec.Struct):
    """Why the output ended."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """Why the output ended, and the final token counts."""

    delta: Stopped
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    """The last event of a stream."""


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """Keeps a waiting connection open."""


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping


class TokenCount(msgspec.Struct):
    """How many tokens a model would read."""

    input_tokens: int


class AnthropicErrorDetails(msgspec.Struct):
    """The error's code, for programs."""

    error_code: str | None


class AnthropicErrorBody(msgspec.Struct):
    """What is wrong and what to do."""

    type: str
    message: str
    details: AnthropicErrorDetails


class AnthropicError(msgspec.Struct, tag_field="type", tag="error"):
    """The body of every response with a status from 400; also the last event of a stream that fails after its start."""

    error: AnthropicErrorBody
    request_id: str | None


class AnthropicModel(msgspec.Struct, tag_field="type", tag="model"):
    """A served name. Its lengths are null until its model was loaded once."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    max_tokens: int | None
    lifecycle: Literal["active"] = "active"


class AnthropicModels(msgspec.Struct):
    """A page of served names."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None
