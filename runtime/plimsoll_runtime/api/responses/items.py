"""Items in requests, in the store and in stored responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from plimsoll_runtime.api.responses.errors import item_id, item_not_found, response_of_item
from plimsoll_runtime.api.responses.shares import StoredResponse
from plimsoll_runtime.api.schemas.parts import REFUSAL, ImagePart, why_refused
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
from plimsoll_runtime.api.schemas.response_input import (
    GivenCall,
    GivenItem,
    GivenMessage,
    GivenOutput,
    GivenPart,
    GivenReasoning,
    GivenReference,
)
from plimsoll_runtime.api.schemas.sampling import invalid


class _OfResponse(msgspec.Struct):
    output: list[Item]


_encode = msgspec.json.Encoder().encode
_INPUT = msgspec.json.Decoder(list[Item])
_RESPONSE = msgspec.json.Decoder(_OfResponse)


def packed(items: Sequence[Item]) -> bytes:
    """Return items encoded for the store."""
    return _encode(items)


def items_of(kept: StoredResponse) -> list[Item]:
    """Return the items of a response: those of its own input, then those of its output."""
    return [*input_of(kept), *_RESPONSE.decode(kept.response).output]


def input_of(kept: StoredResponse) -> list[Item]:
    """Return the items of a response's own input."""
    return _INPUT.decode(kept.input)


def referred(given: str | Sequence[GivenItem]) -> list[str]:
    """Return the ids of the responses whose items a request refers to."""
    if isinstance(given, str):
        return []
    found = (response_of_item(item.id) for item in given if isinstance(item, GivenReference))
    return list(dict.fromkeys(response for response in found if response is not None))


def taken(given: str | Sequence[GivenItem], response: str, kept: Mapping[str, StoredResponse]) -> list[Item]:
    """Return the items of a request, each with an id. References are replaced by the items of the `kept` responses.
    Raises ApiError."""
    if isinstance(given, str):
        return [MessageItem(item_id("msg", response, 0), "user", [InputText(given)])]
    known = {item.id: item for one in kept.values() for item in items_of(one)}
    items: list[Item] = []
    for number, item in enumerate(given):
        if isinstance(item, GivenReference):
            if item.id not in known:
                raise item_not_found(item.id, f"input[{number}]")
            items.append(known[item.id])
        else:
            assert not isinstance(item, str), "the items must not be text"
            items.append(_taken(item, response, number))
    return items


def refuse_images(given: str | Sequence[GivenItem]) -> None:
    """Raise ApiError if the input has an image."""
    for number, item in enumerate(() if isinstance(given, str) else given):
        parts = {"content": item.content} if isinstance(item, GivenMessage) else {}
        parts |= {"output": item.output} if isinstance(item, GivenOutput) else {}
        for field, content in parts.items():
            for index, part in enumerate(() if isinstance(content, str) else content):
                if isinstance(part, ImagePart):
                    raise invalid(f"input[{number}].{field}[{index}].type", why_refused("part", part.type))


def _taken(given: GivenMessage | GivenCall | GivenOutput | GivenReasoning, response: str, number: int) -> Item:
    status = given.status or "completed"

    def own(kind: str) -> str:
        return given.id or item_id(kind, response, number)

    match given:
        case GivenMessage(role="assistant"):
            texts: list[InputText | OutputText] = [OutputText(text) for text in _texts(given.content)]
            return MessageItem(own("msg"), "assistant", texts, status)
        case GivenMessage():
            _check_refusals(given.content, f"input[{number}].content")
            return MessageItem(own("msg"), given.role, [InputText(text) for text in _texts(given.content)], status)
        case GivenCall():
            return FunctionCallItem(own("fc"), given.call_id, given.name, given.arguments, status)
        case GivenOutput():
            _check_refusals(given.output, f"input[{number}].output")
            output = given.output if isinstance(given.output, str) else [InputText(t) for t in _texts(given.output)]
            return FunctionOutputItem(own("fco"), given.call_id, output, status)
        case GivenReasoning():
            summary = [SummaryText(text) for text in _texts(given.summary or ())]
            content = [ReasoningText(text) for text in _texts(given.content or ())]
            return ReasoningItem(own("rs"), summary, content, status=status)


def _texts(content: str | Iterable[GivenPart]) -> list[str]:
    return [content] if isinstance(content, str) else [part.shown for part in content]


def _check_refusals(content: str | Sequence[GivenPart], where: str) -> None:
    """Raise ApiError for a refusal that is not the assistant's."""
    for index, part in enumerate(() if isinstance(content, str) else content):
        if part.type == REFUSAL:
            raise invalid(f"{where}[{index}].type", "only messages of the assistant may have a refusal")
