"""Content in spans: none unless it is on, and then only its beginning, cut between characters."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.api.telemetry.request_content import MOST_BYTES, RequestContent, beginning
from plimsoll_runtime.api.telemetry.request_numbers import numbers_of
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.api.telemetry.request_spans import RequestSpans
from plimsoll_telemetry import attributes as names
from plimsoll_telemetry.server_span import HttpRequest
from plimsoll_telemetry.trace_context import TraceContext

TEXT = st.text(st.characters(codec="utf-8"))


@given(TEXT, st.integers(0, 40))
def test_a_beginning_is_the_longest_that_fits(text: str, size: int) -> None:
    kept = beginning(text, size)
    assert text.startswith(kept)
    assert len(kept.encode()) <= size
    assert kept == text or len(text[: len(kept) + 1].encode()) > size


def test_a_lone_surrogate_is_no_error() -> None:
    assert beginning("a\ud800b", 10) == "a?b"


@given(st.lists(TEXT.filter(bool)), st.lists(st.tuples(st.integers(0, 3), TEXT)))
def test_content_is_bounded_in_total(prompts: list[str], pieces: list[tuple[int, str]]) -> None:
    content = RequestContent()
    for prompt in prompts:
        content.add_prompt(prompt * 50)
    for choice, piece in pieces:
        content.add_output(choice, piece * 50)
    for given_texts, text in (
        (["".join(p * 50 for p in prompts)], content.input_messages()),
        ([], content.output_messages()),
    ):
        parts = [each["parts"][0]["content"] for each in msgspec.json.decode(text)] if text else []
        assert sum(len(part.encode()) for part in parts) <= MOST_BYTES
        assert all("".join(parts) == whole[: len("".join(parts))] for whole in given_texts)


def test_nothing_follows_a_piece_that_was_cut() -> None:
    content = RequestContent()
    content.add_output(0, "ab" + "ü" * MOST_BYTES)
    content.add_output(0, "after")
    [message] = msgspec.json.decode(content.output_messages())
    assert message["role"] == "assistant"
    assert message["parts"][0]["content"] == "ab" + "ü" * ((MOST_BYTES - 2) // 2)


def spans_attributes(record: RequestRecord) -> object:
    record.span = TraceContext(1, 2, sampled=True)
    return RequestSpans(record, HttpRequest("POST", "/v1/completions", 200, "r"), 0)()[0].attributes


def test_a_span_has_content_only_if_the_record_collects_it() -> None:
    record = RequestRecord("r")
    assert not {names.INPUT_MESSAGES, names.OUTPUT_MESSAGES} & set(spans_attributes(record))  # type: ignore[call-overload]
    record.content = RequestContent()
    record.content.add_prompt("why?")
    found = spans_attributes(record)
    assert found[names.INPUT_MESSAGES] == '[{"role":"user","parts":[{"type":"text","content":"why?"}]}]'  # type: ignore[index]


class Body(msgspec.Struct):
    """Fields as bodies of several endpoints have them."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None


def test_numbers_are_told_if_the_body_sets_them() -> None:
    assert numbers_of(Body()) == {}
    assert numbers_of(Body(n=1)) == {}
    assert numbers_of(Body(5, 6, 0.0, 0.5, 2)) == {
        names.REQUEST_MAX_TOKENS: 6,
        names.REQUEST_TEMPERATURE: 0.0,
        names.REQUEST_TOP_P: 0.5,
        names.REQUEST_CHOICES: 2,
    }
