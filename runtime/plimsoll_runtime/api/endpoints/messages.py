"""POST /v1/messages and /v1/messages/count_tokens. Translates Anthropic's requests to chat requests in OpenAI's
format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from plimsoll_runtime.api.chat.conversation import converse, tokens_of
from plimsoll_runtime.api.chat.reasoning import ReasoningOptions
from plimsoll_runtime.api.endpoint import Endpoint
from plimsoll_runtime.api.endpoints.message_output import MessageAnswers
from plimsoll_runtime.api.endpoints.tokenize import answer_by_tokenizer
from plimsoll_runtime.api.generation.generation import Generation
from plimsoll_runtime.api.generation.prompts import TOO_LONG
from plimsoll_runtime.api.generation.schema_warnings import Fields
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.model_directory import ModelTable
from plimsoll_runtime.api.schemas.chat import MAX_MESSAGES, ChatMessage, ChatRequest
from plimsoll_runtime.api.schemas.message_events import TokenCount
from plimsoll_runtime.api.schemas.messages import (
    AnyChoice,
    AutoChoice,
    Conversation,
    CountRequest,
    DisabledThinking,
    EnabledThinking,
    ImageBlock,
    MessagesRequest,
    NamedChoice,
    Result,
    TextBlock,
    Texts,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from plimsoll_runtime.api.schemas.parts import LEFT_OUT, why_refused
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.schemas.tools import MAX_TOOLS
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.options import ImageParts

OWN_NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "thinking_budget": "thinking.budget_tokens",
}
"""Names that Anthropic's requests have for fields of a chat."""
FIELDS = Fields("output_config.format.schema", "tools[{}].input_schema")
"""Places of schemas in Anthropic's requests."""
_EFFORTS = {"xhigh": "high", "max": "high"}
"""Reasoning levels that models here do not have, and their replacements."""


def chat_of(body: Conversation, images: ImageParts = "refuse") -> ChatRequest:
    """Translate a conversation in Anthropic's format to a chat request. Raises ApiError."""
    if images == "refuse":
        _refuse_images(body.messages)
    fields: dict[str, Any] = {"model": body.model, "messages": list(_messages(body))}
    fields |= _tools(body) | _answer(body)
    last = fields["messages"][-1]
    if last.role == "assistant" and not last.tool_calls:
        fields["continue_final_message"] = True
    if isinstance(body, MessagesRequest):
        fields |= {name: getattr(body, name) for name in ("temperature", "top_p", "top_k", "stream")}
        fields |= {"max_completion_tokens": max(1, body.max_tokens), "stop": body.stop_sequences}
    return ChatRequest(**fields)


@contextmanager
def own_names() -> Iterator[None]:
    """Rename fields of a chat in errors to those of Anthropic's requests. For a prompt that is too long, the message
    starts with the words that agents look for in order to shorten it."""
    try:
        yield
    except ApiError as error:
        own = OWN_NAMES.get(error.param or "", error.param)
        told = error.message if own is None else error.message.replace(f"'{error.param}'", f"'{own}'")
        if error.code == TOO_LONG:
            told = f"prompt is too long: {told}"
        raise ApiError(told, status=error.status, param=own, code=error.code, headers=error.headers) from error


@dataclass(slots=True)
class _Said:
    """One message of the chat while it grows; consecutive turns of one role become one message. In the result of a tool
    call, `answers` is the id of the call."""

    role: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    answers: str | None = None

    @property
    def message(self) -> ChatMessage:
        return ChatMessage(
            role=self.role,  # type: ignore[arg-type]
            content="\n".join(self.texts),
            reasoning_content="\n".join(self.thoughts) or None,
            tool_calls=self.calls or None,  # type: ignore[arg-type]
            tool_call_id=self.answers,
        )


def _messages(body: Conversation) -> Iterator[ChatMessage]:
    said: list[_Said] = []
    if body.system is not None:
        said.append(_Said("system", _texts(body.system)))
    for index, turn in enumerate(body.messages):
        _say(said, turn, f"messages[{index}].content")
    if len(said) > MAX_MESSAGES:
        raise invalid("messages", f"turns and tool results are {len(said)} messages, above the limit of {MAX_MESSAGES}")
    if max((len(one.calls) for one in said), default=0) > MAX_TOOLS:
        raise invalid("messages", f"a turn has more tool calls than the limit of {MAX_TOOLS}")
    return (one.message for one in said)


def _say(said: list[_Said], turn: Turn, where: str) -> None:
    blocks = [TextBlock(type="text", text=turn.content)] if isinstance(turn.content, str) else turn.content
    if not blocks:
        _of(said, turn.role)
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            _of(said, turn.role).texts.append(block.text)
        elif isinstance(block, ToolResultBlock):
            _check_role(turn, "user", block.type, f"{where}[{index}]")
            said.append(_Said("tool", _texts(block.content or ""), answers=block.tool_use_id))
        elif isinstance(block, ImageBlock):
            _of(said, turn.role).texts.append(LEFT_OUT)
        else:
            _check_role(turn, "assistant", block.type, f"{where}[{index}]")
            spoken = _of(said, turn.role)  # a redacted block has no text, but makes a turn
            if isinstance(block, ToolUseBlock):
                spoken.calls.append(_call(block))
            elif isinstance(block, ThinkingBlock) and block.thinking:
                spoken.thoughts.append(block.thinking)


def _of(said: list[_Said], role: str) -> _Said:
    """Return the last message if it has this role; otherwise append an empty one of this role and return that."""
    if not said or said[-1].role != role:
        said.append(_Said(role))
    return said[-1]


def _check_role(turn: Turn, role: str, kind: str, where: str) -> None:
    if turn.role != role:
        raise invalid(where, f"a block of type {kind!r} belongs in a turn of the {role}, not of the {turn.role}")


def _texts(content: Texts | Result) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [LEFT_OUT if isinstance(block, ImageBlock) else block.text for block in content]


def _refuse_images(turns: Sequence[Turn]) -> None:
    """Raise ApiError if a turn has an image."""
    for number, turn in enumerate(turns):
        for index, block in enumerate(() if isinstance(turn.content, str) else turn.content):
            where = f"messages[{number}].content[{index}]"
            if isinstance(block, ImageBlock):
                raise invalid(where, why_refused("block", block.type))
            inner = block.content if isinstance(block, ToolResultBlock) else None
            for place, result in enumerate(inner if isinstance(inner, list) else ()):
                if isinstance(result, ImageBlock):
                    raise invalid(f"{where}.content[{place}]", why_refused("block", result.type))


def _call(block: ToolUseBlock) -> dict[str, Any]:
    return {"id": block.id, "function": {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}}


def _tools(body: Conversation) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if body.tools:
        fields["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.input_schema,
                    "strict": tool.strict,
                },
            }
            for tool in body.tools
        ]
    choice = body.tool_choice
    if isinstance(choice, NamedChoice):
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not None:
        fields["tool_choice"] = {"any": "required"}.get(choice.type, choice.type)
    if isinstance(choice, AutoChoice | AnyChoice | NamedChoice) and choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    return fields


def wish_of(body: Conversation) -> ReasoningOptions:
    """Return a request's wishes for reasoning."""
    said = None if body.output_config is None else body.output_config.effort
    effort = None if said is None else _EFFORTS.get(said, said)
    match body.thinking:
        case EnabledThinking(budget_tokens=budget):
            return ReasoningOptions(thinks=True, budget=budget, effort=effort)
        case DisabledThinking():
            return ReasoningOptions(thinks=False)
        case _:
            return ReasoningOptions(effort=effort)


def _answer(body: Conversation) -> dict[str, Any]:
    """Return the chat request's `response_format`; empty if the conversation requests no output format."""
    fields: dict[str, Any] = {}
    if body.output_config is not None and (form := body.output_config.format) is not None:
        fields["response_format"] = {"type": "json_schema", "json_schema": {"schema": form.schema_}}
    return fields


def prepare(body: MessagesRequest, model: ServedModel, record: RequestRecord) -> Generation:
    """Check a request without the engine, and return it ready to run. Raises ApiError."""
    with own_names():
        chat = chat_of(body, model.options.image_parts)
        form = partial(MessageAnswers, body)
        job = converse(chat, model, record, form, wish_of(body), cut=True, fields=FIELDS)
    own = OWN_NAMES.get(job.constrained_by, job.constrained_by)
    return replace(job, constrained_by=own, counted=body.max_tokens > 0)


def _count(body: CountRequest, model: ServedModel, record: RequestRecord) -> TokenCount:
    with own_names():
        count = len(tokens_of(chat_of(body, model.options.image_parts), model, wish_of(body)))
    record.prompt_tokens = count
    return TokenCount(count)


async def count_tokens(request: Request, models: ModelTable, record: RequestRecord) -> Response:
    """Count the tokens of a conversation. Raises ApiError, ClientGoneError."""
    return await answer_by_tokenizer(request, models, record, CountRequest, _count)


messages = Endpoint(MessagesRequest, prepare)
