"""However the output is split into parts, its events are well-formed and add up to its items."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.api.responses.output import Output
from plimsoll_runtime.api.schemas.response import FunctionCallItem, MessageItem, OutputItem, ReasoningItem
from plimsoll_runtime.api.schemas.response_events import (
    ArgumentsDelta,
    ArgumentsDone,
    ItemAdded,
    ItemDone,
    Numbered,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    SummaryDelta,
    SummaryDone,
    SummaryPartAdded,
    SummaryPartDone,
    TextDelta,
    TextDone,
)

RESPONSE = "resp_" + "a" * 44
TEXT = st.sampled_from(["a", "bc", " ", "\n", " d", ""])
ARGUMENTS = st.sampled_from(['{"a": 1', "}", " ", "{}", ""])
PARTS = st.lists(
    st.tuples(st.just("words"), TEXT)
    | st.tuples(st.just("thoughts"), TEXT)
    | st.tuples(st.just("call"), st.lists(ARGUMENTS, max_size=3)),
    max_size=12,
)


def said(output: Output, parts: Iterable[tuple[str, Any]]) -> Iterable[Numbered]:
    for number, (kind, value) in enumerate(parts):
        match kind:
            case "words":
                yield from output.words(value)
            case "thoughts":
                yield from output.thoughts(value)
            case "call":
                yield from output.call(f"call_{number}", "f")
                for text in value:
                    yield from output.arguments(text)


def text_of(item: OutputItem) -> str:
    match item:
        case MessageItem(content=[part]):
            return part.text
        case ReasoningItem(content=[part]) | ReasoningItem(summary=[part]):
            return part.text
        case FunctionCallItem(arguments=text):
            return text
    raise AssertionError(item)


SHAPES: dict[tuple[type, bool], tuple[tuple[type, ...], type, tuple[type, ...]]] = {
    (MessageItem, False): ((PartAdded,), TextDelta, (TextDone, PartDone)),
    (ReasoningItem, False): ((PartAdded,), ReasoningDelta, (ReasoningDone, PartDone)),
    (ReasoningItem, True): ((SummaryPartAdded,), SummaryDelta, (SummaryDone, SummaryPartDone)),
    (FunctionCallItem, False): ((), ArgumentsDelta, (ArgumentsDone,)),
}
"""Events between the start of an item and its end."""


@given(PARTS, st.booleans(), st.sampled_from(["completed", "incomplete"]))
def test_events_add_up_to_items(parts: list[tuple[str, Any]], summarised: bool, status: Any) -> None:
    output = Output(RESPONSE, 2, summarised=summarised)
    events = [*said(output, parts), *output.finish(status)]
    for index, item in enumerate(output.items):
        own: list[Any] = [event for event in events if getattr(event, "output_index", None) == index]
        before, delta, after = SHAPES[type(item), summarised and isinstance(item, ReasoningItem)]
        deltas: list[Any] = [event for event in own if isinstance(event, delta)]
        assert [type(event) for event in own] == [ItemAdded, *before, *[delta] * len(deltas), *after, ItemDone]
        assert "".join(event.delta for event in deltas) == text_of(item)
        assert own[-1].item == item
        assert own[0].item.id == item.id == f"{item.id.split('_')[0]}_{'a' * 44}{index + 2:x}"
        assert own[0].item.status == "in_progress"
        if isinstance(item, FunctionCallItem):
            assert item.status == ("completed" if item.arguments.strip() in ("{}", '{"a": 1}') else "incomplete")
        else:
            assert item.status == (status if index == len(output.items) - 1 else "completed")
    assert [event.output_index for event in events] == sorted(event.output_index for event in events)  # type: ignore[attr-defined]
    assert output.snapshot() == output.items


@given(PARTS, st.sampled_from(["completed", "incomplete"]))
def test_nothing_is_lost_but_white_space_between_items(parts: list[tuple[str, Any]], status: Any) -> None:
    output = Output(RESPONSE, 0, summarised=False)
    events = [*said(output, parts), *output.finish(status)]
    for kind, wanted in ((MessageItem, "words"), (ReasoningItem, "thoughts")):
        found = "".join(text_of(item) for item in output.items if isinstance(item, kind))
        given_ = "".join(value for name, value in parts if name == wanted)
        assert "".join(found.split()) == "".join(given_.split())
    calls = [item for item in output.items if isinstance(item, FunctionCallItem)]
    assert [call.arguments for call in calls] == ["".join(value) for name, value in parts if name == "call"]
    assert all(text_of(item).strip() for item in output.items if isinstance(item, MessageItem)) or not calls
    if status == "completed":
        assert any(isinstance(item, MessageItem | FunctionCallItem) for item in output.items)
        assert events


@given(PARTS)
def test_a_snapshot_is_what_would_be_kept_if_it_ended_now(parts: list[tuple[str, Any]]) -> None:
    output = Output(RESPONSE, 0, summarised=False)
    for _ in said(output, parts):
        pass
    before = output.snapshot()
    for _ in output.finish("incomplete"):
        pass
    assert before == output.items


@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_an_answer_of_white_space_alone(status: Any) -> None:
    output = Output(RESPONSE, 0, summarised=False)
    assert [*output.words("\n")] == []
    assert [*output.words(" ")] == []
    for _ in output.finish(status):
        pass
    assert [text_of(item) for item in output.items] == (["\n "] if status == "completed" else [])
