"""The load of scenarios counts every request; every incomplete response is a failure with its cause."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable

import httpx2
import openai
import pytest

from harness import load as harness
from harness.load import LoadEndedError, Outcome, Request, load
from harness.waiting import until

Handler = Callable[[httpx2.Request], httpx2.Response]
WHOLE = [
    {"id": "1", "object": "text_completion", "choices": [{"index": 0, "text": "w1"}]},
    {"id": "1", "object": "text_completion", "choices": [], "usage": {"completion_tokens": 2}},
]


def events(*chunks: object) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


class Broken(httpx2.AsyncByteStream):
    """A response whose connection breaks after the first event."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield events(WHOLE[0]).removesuffix(b"data: [DONE]\n\n")
        raise httpx2.RemoteProtocolError("peer closed the connection")


def client(answer: Handler) -> openai.AsyncOpenAI:
    transport = httpx2.MockTransport(answer)
    return openai.AsyncOpenAI(
        base_url="http://gateway/v1",
        api_key="unused",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport),
    )


def whole(_: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, content=events(*WHOLE), headers={"content-type": "text/event-stream"})


def run(answer: Handler, requests: int = 3) -> Outcome:
    with load(client(answer), "tiny", users=1, prompt="w1", tokens=2, pause=0) as outcome:
        until("some requests", lambda: len(outcome.requests) >= requests, timeout=30)
    return outcome


def test_whole_answers_are_counted() -> None:
    outcome = run(whole)
    assert outcome.answered == len(outcome.requests) >= 3
    assert outcome.failures == []
    assert outcome.texts == {"tiny": {"w1"}}
    assert len(outcome.tokens["tiny"]) == outcome.answered
    assert outcome.summary()["statuses"] == {"200": outcome.answered}


def test_the_model_of_each_request_may_be_chosen() -> None:
    names = itertools.cycle(["a", "b"])
    with load(client(whole), lambda: next(names), users=1, prompt="w1", tokens=2, pause=0) as outcome:
        until("some requests", lambda: len(outcome.requests) >= 4, timeout=30)
    assert outcome.texts == {"a": {"w1"}, "b": {"w1"}}


@pytest.mark.parametrize(
    ("answer", "status", "words", "told"),
    [
        (
            lambda _: httpx2.Response(503, json={"error": {"message": "no replica"}}, headers={"x-request-id": "r7"}),
            503,
            "r7",
            True,
        ),
        (lambda _: httpx2.Response(200, content=events(WHOLE[0])), 200, "None tokens came instead of 2", False),
        (lambda _: httpx2.Response(200, content=events({"error": {"message": "broke off"}})), 200, "broke off", True),
        (lambda _: httpx2.Response(200, stream=Broken()), 200, "peer closed the connection", False),
    ],
    ids=["refused", "short", "error in the stream", "broken"],
)
def test_what_is_not_a_whole_answer_is_a_failure(answer: Handler, status: int, words: str, told: bool) -> None:
    outcome = run(answer)
    assert outcome.answered == 0
    assert all((request.status, request.told, request.model) == (status, told, "tiny") for request in outcome.requests)
    assert words in outcome.failures[0]


def test_no_connection_is_a_failure_that_names_its_cause() -> None:
    def refuse(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("connection refused")

    outcome = run(refuse)
    assert outcome.requests[0].status is None
    assert "connection refused" in outcome.failures[0]


def test_a_load_that_ends_before_the_scenario_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "MAX_REQUESTS", 5)
    loading = load(client(whole), "tiny", users=1, prompt="w1", tokens=2, pause=0)
    outcome = loading.__enter__()
    until("the bound", lambda: len(outcome.requests) == 5, timeout=30)
    with pytest.raises(LoadEndedError, match="after 5 requests"):
        loading.__exit__(None, None, None)


def test_a_scenarios_own_failure_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), load(client(whole), "tiny", users=1, prompt="w1", tokens=2, pause=0):
        raise ZeroDivisionError


def test_the_longest_time_without_an_answer_is_told() -> None:
    outcome = Outcome(
        [Request(0.0, 1.0, 200, None), Request(1.0, 4.0, None, "refused"), Request(5.0, 2.0, 200, None)], {}, 0.0
    )
    summary = outcome.summary()
    assert summary["longest_without_an_answer"] == 6.0
    assert (summary["requests"], summary["failed"]) == (3, 1)
    assert (summary["seconds_p50"], summary["seconds_max"]) == (1.0, 2.0)


def test_the_end_of_the_longest_pause_between_tokens_is_found() -> None:
    outcome = Outcome(tokens={"tiny": [1.0, 1.5, 6.0, 6.2, 8.0, 30.0]})
    assert outcome.resumed_after("tiny", 1.2, 20.0) == pytest.approx(4.8)
    assert outcome.resumed_after("tiny", 1.2, 5.0) == 0.0, "no pause ends in this time"
    assert outcome.resumed_after("tiny", 6.0, 7.0) == 0.0, "the pause is short"
