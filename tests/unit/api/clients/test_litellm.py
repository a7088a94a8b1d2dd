"""litellm distinguishes a server's errors, as agents built on it need: OpenHands, SWE-agent, aider."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from gateway_support.front import gateway_before
from gateway_support.keys import Keys

from plimsoll_runtime.text.tokenizer import Tokenizer

from .conftest import HERE, WAYS, client_python, run_client, standing_in

pytestmark = pytest.mark.long

LONG = "x" * 5000
Told = Callable[..., Awaitable[list[dict[str, Any]]]]
HELLO = [{"role": "user", "content": "Hi"}]


def chat(url: str, text: str = "Hi", **more: Any) -> dict[str, Any]:
    asked = {"way": "completion", "model": "openai/fake", "messages": [{"role": "user", "content": text}]}
    return asked | {"api_base": f"{url}/v1", "api_key": "none"} | more


def of_anthropic(url: str, text: str = "Hi", **more: Any) -> dict[str, Any]:
    return chat(url, text, model="anthropic/fake", api_base=url, max_tokens=5) | more


@pytest.fixture
def told_of(tmp_path: Path) -> Told:
    """Return litellm's error and Retry-After for each request."""
    python, file = client_python("litellm"), tmp_path / "asked.json"

    async def run(*asked: dict[str, Any]) -> list[dict[str, Any]]:
        file.write_text(json.dumps(asked))
        told: list[dict[str, Any]] = await asyncio.to_thread(run_client, python, HERE / "litellm_client.py", file)
        return told

    return run


def errors(told: list[dict[str, Any]]) -> list[str]:
    return [each["error"] for each in told]


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
async def test_prompts_models_and_values(tokenizer: Tokenizer, told_of: Told, way: str) -> None:
    async with standing_in(tokenizer) as stand_in:
        url = stand_in.ways.url(way)
        text = chat(url, way="text_completion", model="text-completion-openai/fake", prompt=LONG, max_tokens=5)
        del text["messages"]
        told = await told_of(
            chat(url),
            chat(url, LONG),
            chat(url, LONG, stream=True),
            chat(url, "x" * 400_000),
            text,
            {"way": "responses", "model": "openai/fake", "input": LONG, "api_base": f"{url}/v1", "api_key": "none"},
            of_anthropic(url, LONG),
            chat(url, model="openai/other"),
            chat(url, temperature=200),
        )
    assert errors(told) == ["", *["ContextWindowExceededError"] * 6, "NotFoundError", "BadRequestError"]


@pytest.mark.long
async def test_keys(tokenizer: Tokenizer, told_of: Told) -> None:
    async with standing_in(tokenizer, api_keys=("one",)) as stand_in:
        url = stand_in.ways.server
        told = await told_of(chat(url, api_key="one"), chat(url, api_key="two"), of_anthropic(url))
    assert errors(told) == ["", "AuthenticationError", "AuthenticationError"]


@pytest.mark.long
async def test_keys_and_rates_of_a_gateway(tokenizer: Tokenizer, told_of: Told, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    keys.add("slow", requestsPerMinute=1)
    keys.add("short", tokensPerMinute=50)
    async with (
        standing_in(tokenizer) as stand_in,
        gateway_before(stand_in.ways.server, ("fake",), **keys.options()) as url,
    ):
        slow, short = ({"api_key": keys.texts[name]} for name in ("slow", "short"))
        asked = [chat(url, **slow), chat(url, **slow), of_anthropic(url, **slow), chat(url, LONG, **short), chat(url)]
        told = await told_of(*asked)
    assert errors(told) == ["", *["RateLimitError"] * 3, "AuthenticationError"]
    assert 1 <= int(told[1]["retry_after"]) <= 61


@pytest.mark.long
async def test_a_server_that_is_overloaded(tokenizer: Tokenizer, told_of: Told) -> None:
    async with standing_in(tokenizer, max_waiting=1) as stand_in:
        running = stand_in.running
        running.engine.pause()
        waiting = asyncio.create_task(running.openai().chat.completions.create(model="fake", messages=HELLO))
        await running.engine.until(lambda: bool(running.engine.running))
        told = await told_of(chat(stand_in.ways.server))
        running.engine.resume()
        await waiting
    assert errors(told) == ["ServiceUnavailableError"]
    assert int(told[0]["retry_after"]) >= 1
