"""Fields of messages that nothing here knows: left aside, and named in a header that cannot be abused."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_runtime.api.body import parse
from plimsoll_runtime.api.ignored import HEADER, LIMIT, ignored_headers
from plimsoll_runtime.api.schemas.chat import ChatRequest

HELLO = {"role": "user", "content": "Hi"}


def header_of(*messages: dict[str, Any]) -> str | None:
    body = json.dumps({"model": "m", "messages": list(messages)}).encode()
    return ignored_headers(parse(body, ChatRequest).messages).get(HEADER)


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


async def test_they_are_named_by_tokenize(fresh: Any) -> None:
    async with fresh.http() as http:
        answer = await http.post("/tokenize", json={"messages": [HELLO | {"mood": 1}]})
    assert answer.headers["x-plimsoll-ignored"] == "messages[0].mood"


def test_nothing_unknown_no_header() -> None:
    assert header_of(HELLO, HELLO | {"tool_calls": [], "refusal": None, "name": "n"}) is None


def test_names_of_our_own_are_names_like_others() -> None:
    body = json.dumps({"model": "m", "messages": [HELLO | {"rendered": 1, "ignored": 2, "unknown": 3, "copy": 4}]})
    (message,) = parse(body.encode(), ChatRequest).messages
    assert message.rendered("m") == HELLO
    assert [*message.ignored("m")] == ["m.rendered", "m.ignored", "m.unknown", "m.copy"]


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.none(), max_size=30), min_size=1))
def test_any_names_make_a_short_plain_header(extras: list[dict[str, Any]]) -> None:
    known = set(HELLO) | set(parse(b'{"model": "m", "messages": [{"role": "user"}]}', ChatRequest).messages[0].__dict__)
    unknown = [sorted(set(extra) - known) for extra in extras]
    value = header_of(*[HELLO | dict.fromkeys(names) for names in unknown])
    assert (value is None) == (not any(unknown))
    if value is not None:
        assert len(value) <= LIMIT
        assert re.fullmatch(r"[A-Za-z0-9._~%\[\], -]+", value)
        assert value.count(", ") <= sum(map(len, unknown))


def test_what_does_not_fit_is_cut() -> None:
    value = header_of(*[HELLO | {"x" * 500: 1, "😀" * 500: 2}] * 4096)
    assert value is not None
    assert len(value) <= LIMIT
    assert value.startswith("messages[0].xxx")
    assert value.endswith("..., ...")
