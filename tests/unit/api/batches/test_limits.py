"""A gateway's limits for a key's batches, minute by minute, whatever servers and gateways do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from gateway_support.front import gateway_before
from gateway_support.keys import CREDENTIAL, Keys
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.api.batches import job
from plimsoll_runtime.api.batches import limits as module
from plimsoll_runtime.api.batches.limits import MINUTE, Allowance, KeyTerms, expected_tokens, read_terms
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.options import BatchOptions

from .test_batches import begin, ended, line, lines_of


def terms(**limits: Any) -> KeyTerms:
    return KeyTerms("k", ("*",), 1, **limits)


class Time:
    """A clock that advances only while code waits for it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def pause(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


LINES = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 80), st.floats(0, 30)), max_size=40)


@given(lines=LINES, requests=st.none() | st.integers(1, 5), tokens=st.none() | st.integers(40, 90))
async def test_no_minute_has_more(
    lines: list[tuple[int, int, float]], requests: int | None, tokens: int | None
) -> None:
    """Limits on lines, and on tokens as estimated or, once known, as counted."""
    time = Time()
    spending = Allowance(terms(requests_per_minute=requests, tokens_per_minute=tokens), time, time.pause)
    asked: list[tuple[float, int]] = []
    for expected, actual, gap in lines:
        time.now += gap
        took = await spending.take(expected)
        assert time.now >= 1000.0 + MINUTE
        last_minute = [each for each in asked if time.now - each[0] < MINUTE]
        assert requests is None or len(last_minute) < requests
        assert tokens is None or sum(cost for _, cost in last_minute) + expected <= tokens or not last_minute
        took(actual)
        asked.append((time.now, actual))


async def test_it_waits_no_longer_than_it_must() -> None:
    time = Time()
    spending = Allowance(terms(requests_per_minute=2, tokens_per_minute=100), time, time.pause)
    first = await spending.take(90)
    first(10)
    await spending.take(90)
    assert time.now == 1000.0 + MINUTE
    await spending.take(1)
    assert time.now == 1000.0 + 2 * MINUTE


async def test_what_is_known_late_counts_then() -> None:
    time = Time()
    spending = Allowance(terms(tokens_per_minute=100), time, time.pause)
    took = await spending.take(10)
    time.now += MINUTE
    took(100)
    await spending.take(20)
    assert time.now == 1000.0 + 3 * MINUTE


@pytest.mark.parametrize(
    ("body", "generates", "tokens"),
    [
        ({}, True, 256),
        ({"max_tokens": 7}, True, 7),
        ({"max_completion_tokens": 9, "max_tokens": 7}, True, 9),
        ({"max_tokens": 7, "n": 3}, True, 21),
        ({"max_tokens": 7, "n": 2, "best_of": 4}, True, 28),
        ({"max_tokens": "many"}, True, 0),
        ({"max_tokens": 7}, False, 0),
    ],
)
def test_tokens_that_a_line_is_expected_to_take(body: dict[str, Any], generates: bool, tokens: int) -> None:
    text = json.dumps({"body": body}).encode()
    assert expected_tokens(text, generates=generates) == 1 + len(text) // 4 + tokens


@pytest.mark.parametrize("text", ["", "{}", '{"key": "k", "models": ["*"], "atOnce": 0}', '{"key": 1}'])
def test_terms_that_are_none_are_no_clients_fault(text: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_terms(text)
    assert refused.value.status == 503


@pytest.fixture
def through_gateway(run_server: Any, tmp_path: Path) -> Callable[..., Awaitable[Any]]:
    """A client of a server behind a gateway with one key of these terms."""

    async def run(fields: dict[str, Any], use: Callable[[openai.AsyncOpenAI, Any], Awaitable[Any]]) -> Any:
        keys = Keys(tmp_path)
        keys.add("team", **fields)
        kept = BatchOptions(tmp_path / "files", at_once=8)
        async with (
            run_server(batches=kept, gateway_tokens=(CREDENTIAL,)) as running,
            gateway_before(running.url, ["fake"], files_model="fake", **keys.options()) as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=keys.texts["team"], max_retries=0) as client,
        ):
            return await use(client, running)

    return run


async def test_a_keys_batches_that_are_open_have_a_bound(through_gateway: Any) -> None:
    async def use(client: openai.AsyncOpenAI, running: Any) -> None:
        running.engine.pause()
        names = [await begin(client, [line(0)]) for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match="The API key 'team' has 2 open batches"):
            await begin(client, [line(0)])
        running.engine.resume()
        for name in names:
            assert (await ended(client, name)).status == "completed"
        assert (await ended(client, await begin(client, [line(0)]))).status == "completed"

    await through_gateway({"batches": 2}, use)


async def test_of_many_that_come_at_once_no_more_are_open(through_gateway: Any) -> None:
    async def use(client: openai.AsyncOpenAI, running: Any) -> None:
        running.engine.pause()
        found = await asyncio.gather(*(begin(client, [line(0)]) for _ in range(6)), return_exceptions=True)
        assert [isinstance(each, str) for each in found].count(True) == 2
        assert len((await client.batches.list()).data) == 2
        running.engine.resume()

    await through_gateway({"batches": 2}, use)


async def test_lines_wait_for_their_minute(through_gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 requests a minute, 5 are for batches: 2 for each of two batches that may be open."""
    monkeypatch.setattr(job, "KEEP_SECONDS", 0.05)
    monkeypatch.setattr(module, "MINUTE", 1e6)
    monkeypatch.setattr(module, "BEGINS_AFTER", 0.0)

    async def use(client: openai.AsyncOpenAI, running: Any) -> Any:
        name = await begin(client, [line(number) for number in range(5)])
        await running.engine.until(lambda: len(running.engine.asked) == 2)
        while (counts := (await client.batches.retrieve(name)).request_counts) is None or counts.completed < 2:
            pass
        await client.batches.cancel(name)
        return await ended(client, name), len(running.engine.asked)

    batch, asked = await through_gateway({"requestsPerMinute": 100, "batchShare": 5, "batches": 2}, use)
    assert (batch.status, batch.request_counts.completed, asked) == ("cancelled", 2, 2)


async def test_a_line_beyond_the_limit_fails_and_no_other(
    through_gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEGINS_AFTER", 0.0)

    async def use(client: openai.AsyncOpenAI, running: Any) -> Any:
        lines = [line(0, max_tokens=10), line(1, max_tokens=5000), line(2, max_tokens=10)]
        batch = await ended(client, await begin(client, lines))
        return batch, await lines_of(client, batch.error_file_id), len(running.engine.asked)

    batch, errors, asked = await through_gateway({"tokensPerMinute": 2000, "batchShare": 50}, use)
    assert (batch.request_counts.completed, batch.request_counts.failed, asked) == (2, 1, 2)
    assert [(each["custom_id"], each["error"]["code"]) for each in errors] == [("request-1", "rate_limit_exceeded")]


async def test_a_model_that_the_key_may_not_use(through_gateway: Any) -> None:
    """The gateway does not see lines, so the server refuses the model."""

    async def use(client: openai.AsyncOpenAI, running: Any) -> Any:
        return await ended(client, await begin(client, [line(0)])), running.engine.asked

    batch, asked = await through_gateway({"models": ["other*"]}, use)
    assert (batch.status, batch.errors.data[0].code, asked) == ("failed", "model_not_allowed", [])
