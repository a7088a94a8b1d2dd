"""Priority and deadline of a request reach the engine or are refused; a missed deadline is a 504."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import openai
import pytest

from plimsoll_runtime.api.http.deadlines import HEADER
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestOutput

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO: list[Any] = [{"role": "user", "content": "Hi"}]


async def ask(running: Any, endpoint: str = "chat", stream: bool = False, n: int = 1, **extra: Any) -> None:
    """Send a request, and read the whole response."""
    client = running.openai()
    common: dict[str, Any] = {"model": "fake", "stream": stream, "n": n, "extra_body": extra}
    if endpoint == "chat":
        answer = await client.chat.completions.create(messages=HELLO, **common)
    else:
        answer = await client.completions.create(prompt="Hi", **common)
    if stream:
        async for _ in answer:
            pass


@pytest.fixture
def by_priority(running: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The server, as if its engine had been started with --policy priority."""
    monkeypatch.setattr(running.engine, "info", msgspec.structs.replace(running.engine.info, policy="priority"))
    return running


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_priority_and_deadline_reach_the_engine(by_priority: Any, endpoint: str) -> None:
    before = time.monotonic_ns()
    await ask(by_priority, endpoint, priority=-3, deadline=2, n=2)
    for asked in by_priority.engine.asked:
        assert (asked.context.params.priority, asked.context.params.deadline) == (-3, 2.0)
        assert before - 1000 <= asked.context.arrived_ns <= time.monotonic_ns(), "since the request came, not since now"
    assert len(by_priority.engine.asked) == 2


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_without_them_nothing_is_urgent(running: Any, endpoint: str) -> None:
    await ask(running, endpoint, priority=None, deadline=None)
    params = running.engine.asked[0].context.params
    assert (params.priority, params.deadline) == (0, None)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_a_priority_that_would_be_ignored_is_refused(running: Any, endpoint: str) -> None:
    with pytest.raises(openai.BadRequestError, match=r"policy is 'fcfs'.*--policy priority") as caught:
        await ask(running, endpoint, priority=1)
    assert caught.value.param == "priority"
    assert running.engine.asked == []
    await ask(running, endpoint, priority=0)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("priority", 101, "from -100"),
        ("priority", -(10**30), "from -100"),
        ("priority", 0.5, "valid integer"),
        ("priority", "high", "valid integer"),
        ("deadline", 0, "more than 0"),
        ("deadline", -1.5, "more than 0"),
        ("deadline", 3601, "at most 3600"),
        ("deadline", "soon", "valid number"),
    ],
)
async def test_values_without_sense_are_refused(by_priority: Any, field: str, value: Any, told: str) -> None:
    with pytest.raises(openai.BadRequestError, match=told) as caught:
        await ask(by_priority, **{field: value})
    assert caught.value.param == field
    assert by_priority.engine.asked == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
async def test_a_deadline_that_passed_is_told_and_not_tried_again(
    running: Any, monkeypatch: pytest.MonkeyPatch, stream: bool, n: int
) -> None:
    asked = []

    async def too_late(request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        asked.append(request)
        yield RequestOutput(request.request_id, finish_reason="deadline", error="its deadline of 2 s passed")

    monkeypatch.setattr(running.engine, "generate", too_late)
    client = running.openai().with_options(max_retries=2)
    with pytest.raises(openai.InternalServerError, match=r"its deadline of 2 s passed\. Allow more time") as caught:
        await client.chat.completions.create(
            model="fake", messages=HELLO, stream=stream, n=n, extra_body={"deadline": 2}
        )
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    assert len(asked) == n, "OpenAI's client was told not to try again"


async def test_missed_deadlines_are_counted(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.engine, "stats", msgspec.structs.replace(running.engine.stats, expired=3))
    async with running.http() as http:
        assert 'plimsoll_expired_total{model="fake",namespace=""} 3.0' in (await http.get("/metrics")).text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
async def test_nobody_computes_for_a_client_that_waits_no_longer(running: Any, stream: bool, n: int) -> None:
    running.engine.pause()
    client = running.openai().with_options(max_retries=2, default_headers={HEADER: "0.05"})
    with pytest.raises(
        openai.InternalServerError, match=r"did not finish within 0\.05 s of its arrival .*Allow more time"
    ) as caught:
        await client.chat.completions.create(model="fake", messages=HELLO, stream=stream, n=n)
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    await running.engine.until(lambda: len(running.engine.aborted) == n)
    assert not running.engine.running


async def test_a_stream_that_has_begun_ends_too(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def one_token(request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        try:
            yield RequestOutput(request.request_id, [65])
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(running.engine, "generate", one_token)
    client = running.openai().with_options(default_headers={HEADER: "1"})
    stream = await client.completions.create(model="fake", prompt="Hi", stream=True)
    assert (await anext(stream)).choices[0].text == "A"
    with pytest.raises(openai.APIError, match="did not finish within 1 s of its arrival"):
        await anext(stream)
    assert ended.is_set()


@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan", "1e9", ""])
async def test_a_time_that_is_none_is_refused(running: Any, given: str) -> None:
    client = running.openai().with_options(default_headers={HEADER: given})
    with pytest.raises(openai.BadRequestError, match="must be a number of seconds above 0 and at most 86400") as caught:
        await client.completions.create(model="fake", prompt="Hi")
    assert caught.value.param == HEADER


async def test_who_waits_long_enough_gets_an_answer(running: Any) -> None:
    client = running.openai().with_options(default_headers={HEADER: "300"})
    await client.completions.create(model="fake", prompt="Hi")
    async for _ in await client.completions.create(model="fake", prompt="Hi", stream=True):
        pass
    assert running.engine.aborted == []
