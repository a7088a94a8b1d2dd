"""Tokens are read from responses that report them, and counted in others."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.admission.quota.token_meter import Meter

USAGE = {"prompt_tokens": 7, "total_tokens": 19, "completion_tokens": 12}


def metered(answer: bytes, cuts: list[int], *, events: bool, status: int = 200) -> int:
    meter = Meter(prompt=5)
    meter.begin(status)
    for begin, end in zip([0, *cuts], [*cuts, len(answer)], strict=True):
        meter.read(answer[begin:end], events=events)
    return meter.tokens()


@given(cuts=st.lists(st.integers(0, 3000)), length=st.sampled_from([0, 10, 3000]))
def test_a_whole_answer_tells_however_it_is_cut(cuts: list[int], length: int) -> None:
    answer = json.dumps({"choices": [{"text": "x" * length}], "usage": USAGE}).encode()
    assert metered(answer, sorted(min(cut, len(answer)) for cut in cuts), events=False) == 19


def test_a_stream_that_was_asked_for_it_tells() -> None:
    last = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\ndata: [DONE]\n\n"
    assert metered(b'data: {"choices": []}\n\n' * 500 + last, [], events=True) == 19


def test_a_stream_that_does_not_tell_counts_an_event_as_a_token() -> None:
    assert metered(b'data: {"choices": []}\n\n' * 30 + b"data: [DONE]\n\n", [], events=True) == 5 + 30


def test_no_text_of_a_model_passes_for_a_count() -> None:
    answer = json.dumps({"text": '{"total_tokens": 0}', "usage": {"total_tokens": 19}, "after": '"total_tokens": 1'})
    assert metered(answer.encode(), [], events=False) == 19


def test_an_answer_that_nobody_waited_for_uses_its_prompt() -> None:
    meter = Meter(prompt=5)
    meter.sending()
    assert (meter.tokens(), meter.sent) == (5, 1)
    meter.not_sent()
    assert (meter.tokens(), meter.sent) == (0, 0)
    meter.sending()
    meter.failed()
    assert (meter.tokens(), meter.sent) == (0, 1)
    meter.sending()
    meter.begin(400)
    assert (meter.tokens(), meter.sent) == (0, 2)


@pytest.mark.parametrize("status", [400, 429, 503])
def test_an_error_uses_nothing(status: int) -> None:
    assert metered(b'{"error": {"message": "no"}}', [], events=False, status=status) == 0
    assert Meter(prompt=5).tokens() == 0
