"""Events are single lines, also for clients that split text at all of Unicode's line ends."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
import pytest
from gateway_support.front import gateway_before

from plimsoll_runtime.api.http.errors import ApiError, dialect_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

LINE_ENDS = [chr(code) for code in range(sys.maxunicode + 1) if len(f"a{chr(code)}b".splitlines()) > 1]
TEXT = "".join(f"x{character}ü" for character in LINE_ENDS)
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "Hi", "echo": True, "logprobs": 1},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": CHAT | {"max_tokens": 200},
}


class Said(msgspec.Struct, tag=True):
    text: str
    more: msgspec.Raw


@pytest.mark.parametrize("path", ASKED)
async def test_each_event_is_one_line(path: str) -> None:
    dialect = dialect_of({"type": "http", "path": path, "headers": []})
    sent = dialect.event(Said(TEXT, msgspec.Raw(msgspec.json.encode([TEXT])))).decode().splitlines()
    assert json.loads(sent[-1].removeprefix("data: ")) == {"type": "Said", "text": TEXT, "more": [TEXT]}
    assert len(sent) == 1 + sent[0].startswith("event: ")
    assert len(dialect.last_words(ApiError(TEXT)).decode().splitlines()) == len(sent)


@pytest.mark.parametrize("path", ASKED)
async def test_streams_of_every_endpoint_and_through_the_gateway(running: Any, path: str) -> None:
    running.engine.answer = TEXT.encode()
    body = {"model": "fake", "stream": True} | ASKED[path]
    body |= {"max_tokens": 200} if path == "/v1/completions" else {}
    async with running.http() as http, gateway_before(running.url, ("fake",)) as gateway:
        for url in (running.url, gateway):
            async with http.stream("POST", url + path, json=body) as response:
                lines = [line async for line in response.aiter_lines()]  # httpx splits as str.splitlines() does
            said = [line for line in lines if line and not line.startswith("event: ")]
            assert all(line.startswith("data: ") for line in said), lines
            events = [json.loads(line.removeprefix("data: ")) for line in said if line != "data: [DONE]"]
            assert "".join(map(_text, events)).endswith(TEXT)


def _text(event: dict[str, Any]) -> str:
    """Return the text that an event adds to the output, for any endpoint."""
    if event.get("type") in ("response.output_text.delta", "content_block_delta"):
        delta = event["delta"]
        return str(delta if isinstance(delta, str) else delta["text"])
    choices = event.get("choices", [])
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)
