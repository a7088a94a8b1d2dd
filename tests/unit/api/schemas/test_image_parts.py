"""Images in conversations: refused by name, or described to the model as left out, so that an agent can continue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from plimsoll_runtime.api.schemas.parts import LEFT_OUT
from plimsoll_runtime.text.tokenizer import Tokenizer

from ..conftest import running_server, template

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
DATA = "data:image/png;base64,iVBORw0KGgo="
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": DATA, "detail": "low"}}
RESPONSE_IMAGE = {"type": "input_image", "image_url": DATA, "detail": "auto"}
MESSAGE_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
TOOL_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASKED: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "See:"}, CHAT_IMAGE]}]},
        "messages[0].content[1].type",
        f"[user]See:\n{LEFT_OUT}",
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "assistant", "tool_calls": [TOOL_CALL]},
                {"role": "tool", "tool_call_id": "c", "content": [CHAT_IMAGE, MESSAGE_IMAGE]},
                {"role": "user", "content": "Go on."},
            ]
        },
        "messages[1].content[0].type",
        f"[assistant][tool]{LEFT_OUT}\n{LEFT_OUT}[user]Go on.",
    ),
    (
        "/v1/responses",
        {"input": [{"role": "user", "content": [RESPONSE_IMAGE, {"type": "input_text", "text": "See."}]}]},
        "input[0].content[0].type",
        f"[user]{LEFT_OUT}\nSee.",
    ),
    (
        "/v1/responses",
        {
            "input": [
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": [RESPONSE_IMAGE]},
            ]
        },
        "input[1].output[0].type",
        f"[assistant][tool]{LEFT_OUT}",
    ),
    (
        "/v1/messages",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "See:"}, MESSAGE_IMAGE]}], "max_tokens": 9},
        "messages[0].content[1]",
        f"[user]See:\n{LEFT_OUT}",
    ),
    (
        "/v1/messages",
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "c",
                            "content": [{"type": "text", "text": "Look:"}, MESSAGE_IMAGE],
                        }
                    ],
                },
            ],
            "max_tokens": 9,
        },
        "messages[1].content[0].content[1]",
        f"[assistant][tool]Look:\n{LEFT_OUT}",
    ),
]


@pytest.fixture(autouse=True)
def shown(tokenizer: Tokenizer) -> Iterator[None]:
    with template(tokenizer, TEMPLATE):
        yield


def prompt(server: Any) -> str:
    return bytes(token for token in server.engine.asked[-1].prompt_token_ids if token < 256).decode()


async def test_they_are_refused_by_name(tokenizer: Tokenizer) -> None:
    async with running_server(tokenizer) as server, server.http() as http:
        for path, body, place, _ in ASKED:
            answer = await http.post(path, json={"model": "fake"} | body)
            message = answer.json()["error"]["message"]
            assert answer.status_code == 400
            assert f"'{place}'" in message
            assert "--image-parts describe" in message
        assert server.engine.asked == []
        assert (await http.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("strict", [False, True])
async def test_or_described(tokenizer: Tokenizer, strict: bool) -> None:
    options: dict[str, Any] = {"image_parts": "describe", "strict_parameters": strict}
    async with running_server(tokenizer, **options) as server, server.http() as http:
        for path, body, _, expected in ASKED:
            for stream in (False, True):
                answer = await http.post(path, json={"model": "fake", "stream": stream} | body)
                assert (answer.status_code, prompt(server)) == (200, expected), answer.text
                assert "x-plimsoll-ignored" not in answer.headers


async def test_they_are_counted_as_they_are_read(tokenizer: Tokenizer) -> None:
    for images, status in (("refuse", 400), ("describe", 200)):
        async with running_server(tokenizer, image_parts=images) as server, server.http() as http:
            for path, body, count in (
                ("/v1/responses/input_tokens", ASKED[2][1], "input_tokens"),
                ("/v1/messages/count_tokens", {"messages": ASKED[4][1]["messages"]}, "input_tokens"),
                ("/tokenize", ASKED[0][1], "count"),
            ):
                answer = await http.post(path, json={"model": "fake"} | body)
                assert answer.status_code == status, answer.text
                assert status == 400 or answer.json()[count] > len(LEFT_OUT)


async def test_a_kept_conversation_goes_on(tokenizer: Tokenizer) -> None:
    async with running_server(tokenizer, image_parts="describe") as server:
        client = server.openai()
        first = await client.responses.create(model="fake", **ASKED[2][1])
        await client.responses.create(model="fake", input="And?", previous_response_id=first.id)
    assert prompt(server) == f"[user]{LEFT_OUT}\nSee.[assistant]Hello![user]And?"


async def test_other_parts_are_still_refused(tokenizer: Tokenizer) -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    async with running_server(tokenizer, image_parts="describe") as server, server.http() as http:
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": [audio]}]}),
            ("/v1/responses", {"input": [{"role": "user", "content": [audio]}]}),
            ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "document"}]}], "max_tokens": 9}),
            (
                "/v1/messages",
                {"messages": [{"role": "user", "content": "a"}], "system": [MESSAGE_IMAGE], "max_tokens": 9},
            ),
        ):
            answer = await http.post(path, json={"model": "fake"} | body)
            assert answer.status_code == 400
            assert "is not supported" in answer.json()["error"]["message"]
