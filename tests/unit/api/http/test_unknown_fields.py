"""Unknown fields of a request are ignored and named in a bounded header, or refused."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_runtime.api.http.body import parse
from plimsoll_runtime.api.http.concurrency import LONG_BODY
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.http.unknown_fields import LIMIT, ignored, refuse_unknown
from plimsoll_runtime.api.schemas.chat import ChatRequest

HELLO = {"role": "user", "content": "Hi"}


def body_of(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    return parse(json.dumps({"model": "m", "messages": list(messages), **fields}).encode(), ChatRequest)


def header_of(*messages: dict[str, Any], **fields: Any) -> str:
    return ignored(body_of(*messages, **fields))


@pytest.mark.parametrize("stream", [False, True])
async def test_they_change_nothing_and_are_named(fresh: Any, stream: bool) -> None:
    part = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    messages = [HELLO | {"mood": {"deep": [1]}, "\r\nX-Evil: 1": 2, "ä": 3}, {"role": "user", "content": [part]}]
    async with fresh.http() as http:
        answer = await http.post("/v1/chat/completions", json={"model": "fake", "messages": messages, "stream": stream})
        plain = await http.post(
            "/v1/chat/completions", json={"model": "fake", "messages": [HELLO, HELLO], "stream": stream}
        )
    assert answer.status_code == 200
    assert answer.headers["x-plimsoll-ignored"] == (
        "messages[0].mood, messages[0].%0D%0AX-Evil%3A%201, messages[0].%C3%A4, messages[1].content[0].cache_control"
    )
    assert "x-evil" not in answer.headers
    assert "x-plimsoll-ignored" not in plain.headers
    asked = fresh.engine.asked
    assert asked[0].prompt_token_ids == asked[1].prompt_token_ids


@pytest.mark.parametrize("stream", [False, True])
async def test_so_are_variables_that_the_template_does_not_read(run_server: Any, stream: bool) -> None:
    body = {"model": "fake", "messages": [HELLO], "stream": stream, "mood": 1}
    body["chat_template_kwargs"] = {"enable_thinking": False, "a b": 1}
    async with run_server() as server, server.http() as http:
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200
        told = "mood, chat_template_kwargs.a%20b, chat_template_kwargs.enable_thinking"
        assert answer.headers["x-plimsoll-ignored"] == told
    del body["mood"]
    async with run_server(strict_parameters=True) as server, server.http() as http:
        refused = (await http.post("/v1/chat/completions", json=body)).json()["error"]
        assert (refused["param"], "does not use 'a b'" in refused["message"]) == ("chat_template_kwargs", True)


async def test_they_are_named_by_tokenize(fresh: Any) -> None:
    async with fresh.http() as http:
        answer = await http.post("/tokenize", json={"messages": [HELLO | {"mood": 1}]})
    assert answer.headers["x-plimsoll-ignored"] == "messages[0].mood"


def test_nothing_unknown_no_header() -> None:
    assert header_of(HELLO, HELLO | {"tool_calls": [], "refusal": None, "name": "n"}) == ""


def test_names_of_our_own_are_names_like_others() -> None:
    body = body_of(HELLO | {"rendered": 1, "copy": 4}, check=1, choices=2)
    assert body.messages[0].rendered("m") == HELLO
    assert body.choices == 1
    assert ignored(body) == "check, choices, messages[0].rendered, messages[0].copy"


def test_they_are_found_wherever_they_stand() -> None:
    function = {"name": "f", "parameters": {"type": "object", "mood": 1}, "mood": 2}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}", "mood": 3}, "mood": 4}
    body = body_of(
        {"role": "assistant", "tool_calls": [call]},
        tools=[{"type": "function", "function": function, "mood": 5}],
        stream=True,
        stream_options={"include_usage": True, "mood": 6},
        mood=7,
    )
    assert ignored(body).split(", ") == [
        "mood",
        "stream_options.mood",
        "messages[0].tool_calls[0].mood",
        "messages[0].tool_calls[0].function.mood",
        "tools[0].mood",
        "tools[0].function.mood",
    ]
    assert body.tools is not None
    assert "mood" not in body.tools[0].function.shown()["function"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mood": 1}, "mood"),
        ({"messages": [HELLO, HELLO | {"(text)": 1}]}, "messages[1].(text)"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "x" * 500: 1}}]},
            f"tools[0].function.{'x' * 182}...",
        ),
    ],
)
def test_who_wants_to_hear_of_them_is_told(fields: dict[str, Any], param: str) -> None:
    body = parse(json.dumps({"model": "m", "messages": [HELLO]} | fields).encode(), ChatRequest)
    with pytest.raises(ApiError, match="Unknown parameter") as refused:
        refuse_unknown(body)
    assert (refused.value.param, refused.value.code) == (param, "unknown_parameter")


async def test_a_strict_server_refuses_them(run_server: Any) -> None:
    async with run_server(strict_parameters=True) as server, server.http() as http:
        for path, body in (
            ("/v1/chat/completions", {"model": "fake", "messages": [HELLO | {"mood": 1}]}),
            ("/v1/completions", {"model": "fake", "prompt": "a", "mood": 1, "stream": True}),
            ("/tokenize", {"prompt": "a", "mood": 1}),
        ):
            answer = await http.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_parameter"), path
            assert "mood" in answer.json()["error"]["param"]
        assert server.engine.asked == []


@pytest.mark.parametrize("stream", [False, True])
async def test_those_of_a_long_body_are_named_too(fresh: Any, stream: bool) -> None:
    body = {"model": "fake", "prompt": [1] * 10, "stream": stream, "mood": "x" * LONG_BODY}
    async with fresh.http() as http:
        answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-plimsoll-ignored"] == "mood"


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.none(), max_size=30), min_size=1))
def test_any_names_make_a_short_plain_header(extras: list[dict[str, Any]]) -> None:
    known = set(HELLO) | set(parse(b'{"model": "m", "messages": [{"role": "user"}]}', ChatRequest).messages[0].__dict__)
    unknown = [sorted(set(extra) - known) for extra in extras]
    value = header_of(*[HELLO | dict.fromkeys(names) for names in unknown])
    assert (value == "") == (not any(unknown))
    if value:
        assert len(value) <= LIMIT
        assert re.fullmatch(r"[A-Za-z0-9._~%\[\]/, -]+", value)
        assert value.count(", ") <= sum(map(len, unknown))


async def test_a_field_without_a_name_is_told(fresh: Any) -> None:
    async with fresh.http() as http:
        for fields, told in (({"": 1}, "%22%22"), ({"mood": 1, "": 1}, "mood, %22%22")):
            answer = await http.post("/v1/completions", json={"model": "fake", "prompt": "Hi", **fields})
            assert (answer.status_code, answer.headers["x-plimsoll-ignored"]) == (200, told)


def test_what_does_not_fit_is_cut() -> None:
    value = header_of(*[HELLO | {"x" * 500: 1, "😀" * 500: 2}] * 4096)
    assert len(value) <= LIMIT
    assert value.startswith("messages[0].xxx")
    assert value.endswith("..., ...")
