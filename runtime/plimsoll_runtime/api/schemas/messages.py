"""The requests of POST /v1/messages and /v1/messages/count_tokens, in Anthropic's format."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from plimsoll_runtime.api.schemas.chat import MAX_MESSAGES
from plimsoll_runtime.api.schemas.constraints import Schema, by_type, type_of
from plimsoll_runtime.api.schemas.parts import MAX_PARTS, PARTS, TEXT, content_form
from plimsoll_runtime.api.schemas.sampling import (
    COUNT_LIMIT,
    WITHOUT_EFFECT,
    Count,
    Lenient,
    ModelFields,
    NoEffect,
    Stops,
)
from plimsoll_runtime.api.schemas.tools import MAX_TOOLS, Name

BLOCKS = {
    "text": "(text block)",
    "tool_use": "(tool_use block)",
    "tool_result": "(tool_result block)",
    "thinking": "(thinking block)",
    "redacted_thinking": "(redacted_thinking block)",
    "image": "(image block)",
}
"""Tags of the supported blocks, by type; pydantic inserts them into the locations of errors."""
CHOICES = {word: f"({word})" for word in ("auto", "any", "none", "tool")}
THOUGHTS = {
    "enabled": "(enabled thinking)",
    "disabled": "(disabled thinking)",
    "adaptive": "(adaptive thinking)",
    "between_tools": "(adaptive thinking)",
}


def _readable(value: Any) -> Any:
    kind = type_of(value)
    if kind is not None and kind not in BLOCKS:
        raise ValueError(f"a block of the type {kind[:40]!r} is not supported; this model reads text only")
    return value


def _written(value: Any) -> Any:
    if (kind := type_of(value)) not in (None, "text"):
        raise ValueError(f"a block of the type {str(kind)[:40]!r} is not supported here; send text")
    return value


class TextBlock(Lenient):
    """A text. `cache_control` has no effect: the server caches every prefix that it can."""

    type: Literal["text"]
    text: str
    cache_control: NoEffect = None
    citations: NoEffect = None


TextOnly = Annotated[TextBlock, BeforeValidator(_written)]
Texts = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[list[TextOnly], Field(max_length=MAX_PARTS), Tag(PARTS)],
    Discriminator(content_form),
]
"""A text, or a list of text blocks, which are joined by line ends."""


class ImageBlock(Lenient):
    """An image, which no model here reads. It is refused, or described as left out: see `--image-parts`."""

    type: Literal["image"]
    source: NoEffect = None
    cache_control: NoEffect = None


ResultBlock = Annotated[
    Annotated[TextOnly, Tag(BLOCKS["text"])] | Annotated[ImageBlock, Tag(BLOCKS["image"])],
    Discriminator(lambda value: BLOCKS["image" if type_of(value) == "image" else "text"]),
]
Result = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[list[ResultBlock], Field(max_length=MAX_PARTS), Tag(PARTS)],
    Discriminator(content_form),
]
"""The result of a tool call: a text, or blocks."""


class ToolUseBlock(Lenient):
    """A tool call in a turn of the assistant. `input` is an object of the arguments."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(max_length=256)]
    name: Name
    input: dict[str, Any]
    cache_control: NoEffect = None


class ToolResultBlock(Lenient):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(max_length=256)]
    content: Result | None = None
    is_error: NoEffect = None
    cache_control: NoEffect = None


class ThinkingBlock(Lenient):
    """Reasoning of the assistant. Its `signature` is not checked."""

    type: Literal["thinking"]
    thinking: str
    signature: NoEffect = None


class RedactedThinkingBlock(Lenient):
    """Reasoning that Anthropic has encrypted. The model does not see it."""

    type: Literal["redacted_thinking"]
    data: NoEffect = None


Block = Annotated[
    Annotated[TextBlock, Tag(BLOCKS["text"])]
    | Annotated[ToolUseBlock, Tag(BLOCKS["tool_use"])]
    | Annotated[ToolResultBlock, Tag(BLOCKS["tool_result"])]
    | Annotated[ThinkingBlock, Tag(BLOCKS["thinking"])]
    | Annotated[RedactedThinkingBlock, Tag(BLOCKS["redacted_thinking"])]
    | Annotated[ImageBlock, Tag(BLOCKS["image"])],
    by_type(BLOCKS, "block", "that of a block"),
    BeforeValidator(_readable),
]


class Turn(Lenient):
    """One message: a text, or blocks."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[str, Tag(TEXT)] | Annotated[list[Block], Field(max_length=MAX_PARTS), Tag(PARTS)],
        Discriminator(content_form),
    ]


def _own(kind: Any) -> Any:
    if kind not in (None, "custom"):
        raise ValueError(
            f"tools of the type {str(kind)[:40]!r} are not supported; describe the tool with an 'input_schema'"
        )
    return kind


class CustomTool(Lenient):
    """A tool that the client runs, called with input of `input_schema`. If `strict` is true, a schema that cannot be
    enforced completely is refused; otherwise the rest is enforced, and the header `X-Plimsoll-Ignored` names the
    other parts."""

    type: Annotated[Literal["custom"] | None, BeforeValidator(_own)] = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: NoEffect = None
    eager_input_streaming: NoEffect = None


class _Calls(Lenient):
    disable_parallel_tool_use: bool | None = None


class AutoChoice(_Calls):
    """The model may call a tool."""

    type: Literal["auto"]


class AnyChoice(_Calls):
    """The model must call a tool."""

    type: Literal["any"]


class NoChoice(Lenient):
    """The model must not call a tool."""

    type: Literal["none"]


class NamedChoice(_Calls):
    """The model must call this tool."""

    type: Literal["tool"]
    name: Name


Choice = Annotated[
    Annotated[AutoChoice, Tag(CHOICES["auto"])]
    | Annotated[AnyChoice, Tag(CHOICES["any"])]
    | Annotated[NoChoice, Tag(CHOICES["none"])]
    | Annotated[NamedChoice, Tag(CHOICES["tool"])],
    by_type(CHOICES, "tool_choice", "'auto', 'any', 'tool' or 'none'"),
]


class EnabledThinking(Lenient):
    """The model reasons before it answers, in at most `budget_tokens` tokens. With the display "omitted", the
    response leaves the reasoning out."""

    type: Literal["enabled"]
    budget_tokens: Annotated[int, Field(ge=1, le=COUNT_LIMIT)]
    display: Literal["summarized", "omitted"] | None = None


class DisabledThinking(Lenient):
    """The model answers without reasoning."""

    type: Literal["disabled"]


class ChosenThinking(Lenient):
    """The model reasons as its chat template says."""

    type: Literal["adaptive", "between_tools"]
    display: Literal["summarized", "omitted"] | None = None


Thinking = Annotated[
    Annotated[EnabledThinking, Tag(THOUGHTS["enabled"])]
    | Annotated[DisabledThinking, Tag(THOUGHTS["disabled"])]
    | Annotated[ChosenThinking, Tag(THOUGHTS["adaptive"])],
    by_type(THOUGHTS, "thinking", "'enabled', 'disabled', 'adaptive' or 'between_tools'"),
]


class JsonFormat(Lenient):
    """The output is JSON of this schema."""

    type: Literal["json_schema"]
    schema_: Annotated[Schema, Field(alias="schema")]


class OutputConfig(Lenient):
    """Reasoning effort, and format of the output."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class Metadata(Lenient):
    """Metadata of the request, without effect."""

    user_id: NoEffect = None


class Conversation(ModelFields):
    """A conversation in Anthropic's format."""

    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Texts | None = None
    tools: Annotated[list[CustomTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: NoEffect = None


class CountRequest(Conversation):
    """Anthropic's request for the number of a conversation's tokens."""


class MessagesRequest(Conversation):
    """Anthropic's request for a message. The output may be shorter than `max_tokens` if the context ends."""

    max_tokens: Count
    stop_sequences: Stops = Field(default=[])
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(le=COUNT_LIMIT)] | None = None
    metadata: Metadata | None = None
    service_tier: Annotated[Literal["auto", "standard_only"] | None, WITHOUT_EFFECT] = None
