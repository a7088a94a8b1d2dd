"""The messages of a chat that items come to: what an assistant thinks, says and calls in a row is one message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from plimsoll_runtime.api.schemas.chat import ChatMessage
from plimsoll_runtime.api.schemas.response_items import (
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
from plimsoll_runtime.api.schemas.tools import MAX_TOOLS, CalledFunction, ToolCall

_ABOVE = ("system", "developer")


def messages_of(items: Sequence[Item], instructions: str | None) -> list[ChatMessage]:
    """The messages, instructions first. What the client says as system or developer before all else is one message
    with them: many templates know one such message, at the very beginning.
    """
    said = list(items)
    above = [] if instructions is None else [instructions]
    while said and isinstance(first := said[0], MessageItem) and first.role in _ABOVE:
        above.append(_joined(first.content))
        said.pop(0)
    messages = [ChatMessage(role="system", content="\n\n".join(above))] if above else []
    return [*messages, *_turns(said)]


def turn_starts(items: Sequence[Item]) -> list[int]:
    """Where a user begins to speak: a conversation may be cut there, so that no call loses its result."""
    speakers = [item.role if isinstance(item, MessageItem) else "" for item in items]
    return [at for at, role in enumerate(speakers) if role == "user" and (at == 0 or speakers[at - 1] != "user")]


def without_oldest(items: Sequence[Item], start: int) -> list[Item]:
    """What is said from item `start` on, and before that what stands above all: the system's and developer's word."""
    above = [item for item in items[:start] if isinstance(item, MessageItem) and item.role in _ABOVE]
    return [*above, *items[start:]]


@dataclass(slots=True)
class _Spoken:
    """What an assistant has said in a row."""

    thoughts: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def ends_before(self, item: Item) -> bool:
        """Whether the item is of another message: thoughts come before words, and words before calls."""
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
        """Go on with that."""
        match item:
            case ReasoningItem():
                self.thoughts.append(_joined(item.content or item.summary))
            case MessageItem():
                self.words.append(_joined(item.content))
            case FunctionCallItem():
                function = CalledFunction(name=item.name, arguments=item.arguments)
                self.calls.append(ToolCall(id=item.call_id, function=function))

    def message(self) -> Iterator[ChatMessage]:
        """All of it, if there is any."""
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
