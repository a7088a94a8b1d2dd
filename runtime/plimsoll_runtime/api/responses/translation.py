"""Translates a request for a response, and the turns before it, to a chat request and its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from plimsoll_runtime.api.generation.prompts import TOO_LONG
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.responses.errors import in_terms_of_responses
from plimsoll_runtime.api.schemas.chat import MAX_MESSAGES, ChatMessage, ChatRequest
from plimsoll_runtime.api.schemas.constraints import JsonObjectFormat, JsonSchemaFormat, NamedSchema
from plimsoll_runtime.api.schemas.response import (
    FunctionCallItem,
    FunctionOutputItem,
    InputText,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    SummaryText,
)
from plimsoll_runtime.api.schemas.response_request import (
    AllowedTools,
    ChosenFunction,
    FunctionTool,
    JsonSchemaText,
    ResponseRequest,
)
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.schemas.tools import (
    MAX_TOOLS,
    CalledFunction,
    NamedFunction,
    NamedTool,
    ToolCall,
    ToolDefinition,
)

_ABOVE = ("system", "developer")


def messages_of(items: Sequence[Item], instructions: str | None) -> list[ChatMessage]:
    """Return the chat messages for a conversation's items, instructions first. System and developer messages at the
    start are merged with the instructions, because many templates allow only one such message, at the very
    beginning."""
    said = list(items)
    above = [] if instructions is None else [instructions]
    while said and isinstance(first := said[0], MessageItem) and first.role in _ABOVE:
        above.append(_joined(first.content))
        said.pop(0)
    messages = [ChatMessage(role="system", content="\n\n".join(above))] if above else []
    return [*messages, *_turns(said)]


def turn_starts(items: Sequence[Item]) -> list[int]:
    """Return the indexes of user messages that do not directly follow another one. A conversation may be cut before
    them without separating calls from their results."""
    speakers = [item.role if isinstance(item, MessageItem) else "" for item in items]
    return [at for at, role in enumerate(speakers) if role == "user" and (at == 0 or speakers[at - 1] != "user")]


def without_oldest(items: Sequence[Item], start: int) -> list[Item]:
    """Return the items from `start` on, preceded by the system's and developer's messages before it."""
    above = [item for item in items[:start] if isinstance(item, MessageItem) and item.role in _ABOVE]
    return [*above, *items[start:]]


@dataclass(slots=True)
class _Spoken:
    """Consecutive output of the assistant, which becomes one message."""

    thoughts: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def ends_before(self, item: Item) -> bool:
        """Return whether the item belongs to another message: reasoning precedes text, and text precedes calls."""
        match item:
            case ReasoningItem():
                return bool(self.words or self.calls)
            case MessageItem(role="assistant"):
                return bool(self.calls)
            case FunctionCallItem():
                return len(self.calls) == MAX_TOOLS
            case _:
                return True

    def add(self, item: ReasoningItem | MessageItem | FunctionCallItem) -> None:
        """Add an item."""
        match item:
            case ReasoningItem():
                self.thoughts.append(_joined(item.content or item.summary))
            case MessageItem():
                self.words.append(_joined(item.content))
            case FunctionCallItem():
                function = CalledFunction(name=item.name, arguments=item.arguments)
                self.calls.append(ToolCall(id=item.call_id, function=function))

    def message(self) -> Iterator[ChatMessage]:
        """Yield the message, if it has content."""
        if self.thoughts or self.words or self.calls:
            yield ChatMessage(
                role="assistant",
                content="\n".join(self.words) if self.words or not self.calls else None,
                reasoning_content="\n".join(self.thoughts) or None,
                tool_calls=self.calls or None,
            )


def _turns(items: Iterable[Item]) -> Iterator[ChatMessage]:
    spoken = _Spoken()
    for item in items:
        if spoken.ends_before(item):
            yield from spoken.message()
            spoken = _Spoken()
        if isinstance(item, FunctionOutputItem) or (isinstance(item, MessageItem) and item.role != "assistant"):
            yield _heard(item)
        else:
            spoken.add(item)
    yield from spoken.message()


def _heard(item: MessageItem | FunctionOutputItem) -> ChatMessage:
    if isinstance(item, MessageItem):
        return ChatMessage(role=item.role, content=_joined(item.content))
    output = item.output if isinstance(item.output, str) else _joined(item.output)
    return ChatMessage(role="tool", tool_call_id=item.call_id, content=output)


def _joined(parts: Sequence[InputText | OutputText | ReasoningText | SummaryText]) -> str:
    return "\n".join(part.text for part in parts)


MadeT = TypeVar("MadeT")

_NOT_COPIED = {
    "metadata",
    "model",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "tool_choice",
    "tools",
    "top_logprobs",
    "user",
}
_SAME_NAME = tuple(
    name for name in ChatRequest.model_fields if name in ResponseRequest.model_fields and name not in _NOT_COPIED
)
"""Fields that a chat takes unchanged from a request for a response; `_NOT_COPIED` are converted or have no effect."""


def check_calls(before: Sequence[Item], items: Sequence[Item]) -> None:
    """Raise ApiError for a call's result without an earlier call."""
    called = {item.call_id for item in before if isinstance(item, FunctionCallItem)}
    for number, item in enumerate(items):
        if isinstance(item, FunctionCallItem):
            called.add(item.call_id)
        elif isinstance(item, FunctionOutputItem) and item.call_id not in called:
            raise invalid(f"input[{number}].call_id", f"there is no earlier call {item.call_id[:100]!r}")


def converted(body: ResponseRequest, items: Sequence[Item], make: Callable[[ChatRequest], MadeT]) -> MadeT:
    """Return the result of `make` for the chat. If the request allows truncation, the chat has as many turns as fit.
    Raises ApiError that names fields of the request for a response."""
    with in_terms_of_responses():
        if body.truncation != "auto":
            return make(chat_of(body, items))
        return _shortened(body, items, make)


def chat_of(body: ResponseRequest, items: Sequence[Item]) -> ChatRequest:
    """Return the chat request for the items. Raises ApiError."""
    messages = messages_of(items, body.instructions)
    if not messages:
        raise invalid("input", "it is empty")
    if len(messages) > MAX_MESSAGES:
        raise invalid("input", f"the conversation has {len(messages)} messages, above the limit of {MAX_MESSAGES}")
    same = {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    return ChatRequest(
        model=body.model,
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        logprobs=body.tells_logprobs,
        top_logprobs=body.top_logprobs if body.tells_logprobs else None,
        tools=[ToolDefinition(type="function", function=tool) for tool in _shown(body)] or None,
        tool_choice=_choice(body),
        response_format=_format(body),
        verbosity=None if body.text is None else body.text.verbosity,
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        **same,
    )


def _shortened(body: ResponseRequest, items: Sequence[Item], make: Callable[[ChatRequest], MadeT]) -> MadeT:
    """Return the result for the most turns that fit, by binary search: a long conversation is rendered a dozen times
    at most."""
    starts = [0, *(start for start in turn_starts(items) if start)]
    least, most = 0, len(starts) - 1
    found: MadeT | None = None
    at = 0  # most conversations fit
    while least <= most:
        try:
            found = make(chat_of(body, without_oldest(items, starts[at])))
            most = at - 1
        except ApiError as error:
            if error.code != TOO_LONG or at == len(starts) - 1:
                raise
            least = at + 1
        at = (least + most) // 2
    assert found is not None, "the last turn alone gave neither a result nor an error"
    return found


def _shown(body: ResponseRequest) -> list[FunctionTool]:
    """Return the tools that the model may see. Raises ApiError."""
    tools = list(body.tools or ())
    if not isinstance(body.tool_choice, AllowedTools):
        return tools
    allowed = [tool.name for tool in body.tool_choice.tools]
    known = {tool.name for tool in tools}
    if unknown := [name for name in allowed if name not in known]:
        raise invalid("tool_choice.tools", f"the request has no tool {unknown[0]!r}")
    return [tool for tool in tools if tool.name in allowed]


def _choice(body: ResponseRequest) -> Any:
    choice = body.tool_choice
    if isinstance(choice, AllowedTools):
        return choice.mode
    if isinstance(choice, ChosenFunction):
        return NamedTool(type="function", function=NamedFunction(name=choice.name))
    return choice


def _format(body: ResponseRequest) -> JsonObjectFormat | JsonSchemaFormat | None:
    given = None if body.text is None else body.text.format
    if isinstance(given, JsonSchemaText):
        schema = NamedSchema(name=given.name, schema_=given.schema_, description=given.description, strict=given.strict)
        return JsonSchemaFormat(type="json_schema", json_schema=schema)
    return given if isinstance(given, JsonObjectFormat) else None
