"""A conversation's chat contains all items in order, or as many turns as fit."""

from __future__ import annotations

from itertools import pairwise
from math import ceil, log2
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.api.generation.prompts import TOO_LONG
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.responses.errors import renamed
from plimsoll_runtime.api.responses.translation import (
    chat_of,
    check_calls,
    converted,
    messages_of,
    turn_starts,
    without_oldest,
)
from plimsoll_runtime.api.schemas.chat import ChatRequest
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
from plimsoll_runtime.api.schemas.response_request import ResponseRequest
from plimsoll_runtime.api.schemas.tools import MAX_TOOLS

KINDS = ("user", "assistant", "system", "developer", "thought", "summary", "call", "result")


def item(kind: str, number: int) -> Item:
    text = f"<{number}>"
    match kind:
        case "user" | "system" | "developer":
            return MessageItem(f"msg_{number}", kind, [InputText(text)])
        case "assistant":
            return MessageItem(f"msg_{number}", "assistant", [OutputText(text)])
        case "thought":
            return ReasoningItem(f"rs_{number}", [], [ReasoningText(text)])
        case "summary":
            return ReasoningItem(f"rs_{number}", [SummaryText(text)], [])
        case "call":
            return FunctionCallItem(f"fc_{number}", f"call_{number}", text, "{}")
        case _:
            return FunctionOutputItem(f"fco_{number}", "call_0", text)


ITEMS = st.lists(st.sampled_from(KINDS), max_size=14).map(lambda kinds: [item(k, n) for n, k in enumerate(kinds)])


def request(**fields: Any) -> ResponseRequest:
    return ResponseRequest(**({"model": "m", "input": "Hi"} | fields))


@given(ITEMS, st.none() | st.just("<i>"))
def test_all_is_said_in_order(items: list[Item], instructions: str | None) -> None:
    messages = messages_of(items, instructions)
    rendered = [message.rendered("m") for message in messages]
    said = "".join(
        str(shown.get(part)) for shown in rendered for part in ("reasoning_content", "content", "tool_calls")
    )
    places = [said.find(f"<{number}>") for number in range(len(items))]
    assert -1 not in places
    assert places == sorted(places)
    assert sum(len(message.tool_calls or ()) for message in messages) == sum(
        isinstance(one, FunctionCallItem) for one in items
    )
    if instructions is not None:
        assert (messages[0].role, str(messages[0].content)[:3]) == ("system", "<i>")
    for one, other in pairwise(messages):
        if one.role == other.role == "assistant":
            assert one.tool_calls or other.reasoning_content, "what could be one message is one"


def test_calls_without_number_are_several_messages() -> None:
    items = [item("call", number) for number in range(MAX_TOOLS + 1)]
    assert [len(message.tool_calls or ()) for message in messages_of(items, None)] == [MAX_TOOLS, 1]


@given(ITEMS, st.integers(1, 14))
def test_as_many_turns_as_fit_are_said(items: list[Item], most: int) -> None:
    """Found by binary search, not by trying each number."""
    tried: list[int] = []

    def make(chat: ChatRequest) -> ChatRequest:
        tried.append(len(chat.messages))
        if len(chat.messages) > most:
            raise ApiError("too long", code=TOO_LONG, param="messages")
        return chat

    body = request(truncation="auto")
    cuts = [0, *(start for start in turn_starts(items) if start)]
    chats = [messages_of(without_oldest(items, cut), None) for cut in cuts]
    fitting = [messages for messages in chats if len(messages) <= most]
    if not items:
        return
    if not fitting:
        with pytest.raises(ApiError, match="too long") as refused:
            converted(body, items, make)
        assert refused.value.param == "input"
    else:
        assert converted(body, items, make).messages == fitting[0]
    assert len(tried) <= 2 + ceil(log2(len(cuts) + 1))


@given(ITEMS)
def test_what_stands_above_all_is_never_left_out(items: list[Item]) -> None:
    above = [one for one in items if isinstance(one, MessageItem) and one.role in ("system", "developer")]
    for start in turn_starts(items):
        left = without_oldest(items, start)
        assert [one for one in left if one in above] == above
        assert left[-len(items[start:]) :] == items[start:]


def test_an_error_of_another_kind_is_not_tried_again() -> None:
    tried: list[ChatRequest] = []

    def make(chat: ChatRequest) -> ChatRequest:
        tried.append(chat)
        raise ApiError(
            "Invalid value for 'messages[0].content': no.", param="messages[0].content", code="invalid_value"
        )

    with pytest.raises(ApiError, match="Invalid value for 'input': no") as refused:
        converted(request(truncation="auto"), [item("user", 0), item("assistant", 1), item("user", 2)], make)
    assert refused.value.param == "input"
    assert len(tried) == 1


def test_a_conversation_has_as_many_messages_as_a_chat() -> None:
    items = [item("user" if number % 2 else "assistant", number) for number in range(4098)]
    with pytest.raises(ApiError, match="above the limit of 4096"):
        chat_of(request(), items)


def test_results_are_of_calls_that_were_made() -> None:
    result = FunctionOutputItem("fco_1", "call_0", "5")
    call = FunctionCallItem("fc_1", "call_0", "f", "{}")
    check_calls([call], [result])
    check_calls([], [call, result])
    with pytest.raises(ApiError, match=r"'input\[0\].call_id'"):
        check_calls([], [result, call])


def test_an_error_of_no_field_stays_as_it_is() -> None:
    for error in (ApiError("x"), ApiError("x", param="temperature")):
        assert renamed(error) is error
