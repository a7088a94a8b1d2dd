"""What a response is made of, as it is kept and told: messages, calls of functions and their results, thoughts."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from plimsoll_runtime.api.schemas.answers import ChatLogprob

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
