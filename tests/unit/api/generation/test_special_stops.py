"""Stop strings that contain special tokens, at every endpoint with stop strings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ..conftest import USER, Running

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO = [{"role": "user", "content": "Hi"}]
ANSWER = [*b"One ", USER, *b" two.", USER, *b" three"]
CASES = [
    (["<|user|>"], "One ", "<|user|>"),
    ([".<|user|>"], "One  two", ".<|user|>"),
    (["<|assistant|>", "</s>"], "One  two. three", "</s>"),
    (["wo", "<|user|> t"], "One ", "<|user|> t"),
    (["e  t"], "On", "e  t"),
]
"""Stop strings, the text before them, and the one that ends the output."""


async def ask(running: Running, path: str, body: dict[str, Any], *, stream: bool) -> Any:
    running.engine.reset()
    running.engine.answer = ANSWER  # type: ignore[assignment]
    async with running.http() as http:
        got = await http.post(path, json={"model": "fake", "max_tokens": 100, "stream": stream, **body})
    assert got.status_code == 200, got.text
    if not stream:
        return got.json()
    lines = [line.removeprefix("data: ") for line in got.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize(("stop", "text", "reason"), CASES)
async def test_completions(running: Running, stop: list[str], text: str, reason: str) -> None:
    body = {"prompt": "a", "stop": stop}
    [choice] = (await ask(running, "/v1/completions", body, stream=False))["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", reason)
    chunks = [chunk["choices"][0] for chunk in await ask(running, "/v1/completions", body, stream=True)]
    assert "".join(chunk["text"] for chunk in chunks) == text
    assert (chunks[-1]["finish_reason"], chunks[-1]["stop_reason"]) == ("stop", reason)


@pytest.mark.parametrize(("stop", "text", "reason"), CASES)
async def test_chat(running: Running, stop: list[str], text: str, reason: str) -> None:
    body = {"messages": HELLO, "stop": stop}
    [choice] = (await ask(running, "/v1/chat/completions", body, stream=False))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", reason)
    chunks = [chunk["choices"][0] for chunk in await ask(running, "/v1/chat/completions", body, stream=True)]
    assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == text
    assert (chunks[-1]["finish_reason"], chunks[-1]["stop_reason"]) == ("stop", reason)


@pytest.mark.parametrize(("stop", "text", "reason"), CASES)
async def test_messages(running: Running, stop: list[str], text: str, reason: str) -> None:
    body = {"messages": HELLO, "stop_sequences": stop}
    message = await ask(running, "/v1/messages", body, stream=False)
    assert message["content"][0]["text"] == text
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", reason)
    events = await ask(running, "/v1/messages", body, stream=True)
    assert "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta") == text
