"""500 malformed requests, the same ones every time: no server error, no crash, and a message for every refusal."""

import asyncio
import copy
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from fuzz.damage import change, flipped, nested
from fuzz.requests import HEADERS, METHODS, STRANGE_TARGETS, request
from plimsoll_runtime.api.http import body as body_module

NOT_KEPT = b'"code":"files_not_kept"'
"""The message of a 501 of the batch endpoints: this server has no folder for files."""
SEED = 20261121
COUNT = 500

CHAT = {
    "model": "fake",
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    "max_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 2,
    "stop": ["x", "y"],
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"5": 1.0},
    "seed": 1,
    "stream": False,
    "response_format": {"type": "text"},
}
COMPLETION = {
    "model": "fake",
    "prompt": ["a", [1, 2, 3]],
    "max_tokens": 5,
    "temperature": 0.5,
    "logprobs": 2,
    "echo": True,
    "stop": "x",
    "stop_token_ids": [7],
    "stream": True,
    "stream_options": {"include_usage": True},
    "min_tokens": 1,
    "cache_salt": "s",
}
MESSAGES = {
    "model": "fake",
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": [1]}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r", "is_error": False}]},
    ],
    "max_tokens": 5,
    "stop_sequences": ["x"],
    "temperature": 0.5,
    "top_k": 3,
    "tool_choice": {"type": "none"},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low"},
    "stream": True,
}
TOKENIZE = {"model": "fake", "prompt": "Hi", "add_special_tokens": True}
DETOKENIZE = {"model": "fake", "tokens": [1, 2, 3]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/messages": MESSAGES,
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
}
RESPONSE: dict[str, Any] = {
    "model": "fake",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm"}], "content": None},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "5"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So", "annotations": []}]},
    ],
    "instructions": "i",
    "previous_response_id": None,
    "max_output_tokens": 5,
    "temperature": 0.5,
    "top_logprobs": 2,
    "include": ["message.output_text.logprobs"],
    "tools": [],
    "tool_choice": "none",
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": None, "summary": "auto"},
    "truncation": "auto",
    "metadata": {"a": "b"},
    "store": True,
    "background": False,
    "stream": True,
    "seed": 1,
}


@dataclass(frozen=True)
class Malformed:
    """One request as bytes. `answered` says whether its sender gets a response."""

    kind: str
    data: bytes
    answered: bool = True


def malformed_requests(seed: int, count: int) -> Iterator[Malformed]:
    """Return `count` requests of all kinds, in turn."""
    rng = random.Random(seed)
    kinds: list[Callable[[random.Random], Malformed]] = [
        changed_values,
        changed_values,
        changed_values,
        changed_bytes,
        deep,
        changed_headers,
        changed_target,
        broken_framing,
        garbage,
    ]
    for index in range(count):
        yield kinds[index % len(kinds)](rng)


def malformed_responses(seed: int, count: int) -> Iterator[Malformed]:
    """Return `count` requests for a response, each with one to three values replaced, removed or added."""
    rng = random.Random(seed)
    for _ in range(count):
        body = copy.deepcopy(RESPONSE)
        for _ in range(rng.randint(1, 3)):
            change(rng, body, ())
        yield Malformed("a response", request("POST", "/v1/responses", json.dumps(body).encode()))


def changed_values(rng: random.Random) -> Malformed:
    """A valid body with one to three values replaced, removed or added."""
    path, body = choose_body(rng)
    for _ in range(rng.randint(1, 3)):
        change(rng, body, ())
    return Malformed("changed values", request("POST", path, json.dumps(body).encode()))


def changed_bytes(rng: random.Random) -> Malformed:
    """Valid JSON with bytes flipped, removed or added."""
    path, body = choose_body(rng)
    return Malformed("changed bytes", request("POST", path, flipped(rng, json.dumps(body).encode())))


def deep(rng: random.Random) -> Malformed:
    """Deep nesting, long lists, long keys, many keys."""
    path, body = choose_body(rng)
    return Malformed("nested", request("POST", path, nested(rng, body)))


def changed_headers(rng: random.Random) -> Malformed:
    """A valid body under strange headers."""
    path, body = choose_body(rng)
    return Malformed("changed headers", request("POST", path, json.dumps(body).encode(), rng.choice(HEADERS)))


def changed_target(rng: random.Random) -> Malformed:
    """Strange methods and paths."""
    method = rng.choice((*METHODS, "CONNECT"))
    path = rng.choice((*STRANGE_TARGETS, "/v1/embeddings", "/%2e%2e/%2e%2e", "/\u00e4"))
    return Malformed("changed target", request(method, path, b"{}"))


def broken_framing(rng: random.Random) -> Malformed:
    """Bodies that are not what their headers say."""
    body = json.dumps(TOKENIZE).encode()
    head = b"POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nConnection: close\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    data, answered = rng.choice(
        [
            (head + b"Content-Length: %d\r\n\r\n" % (len(body) + 50) + body, False),
            (head + b"Content-Length: 5\r\n\r\n" + body, True),
            (head + b"Content-Length: 5\r\nContent-Length: 7\r\n\r\n" + body, True),
            (chunked + b"zz\r\n" + body, True),
            (chunked + b"ffffffffffffffffffff\r\n" + body, False),
            (chunked + b"5\r\nab", False),
            (chunked + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), True),
            (chunked + b"0\r\n\r\n", True),
            (head + b"\r\n", True),
            (head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", True),
        ]
    )
    return Malformed("broken framing", data, answered)


def garbage(rng: random.Random) -> Malformed:
    """Bytes that are hardly HTTP."""
    data = rng.choice(
        [
            rng.randbytes(rng.randint(1, 2000)),
            b"\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost h\r\n\r\n",
            b"GET /health HTTP/1.1\r\n: empty\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nHost: h\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(100),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"A" * 100_000,
            b"GET /health HTTP/1.1\r\nHost: h\r\n folded: header\r\n\r\n",
        ]
    )
    return Malformed("garbage", data, answered=False)


def choose_body(rng: random.Random) -> tuple[str, dict[str, Any]]:
    path = rng.choice(list(BODIES))
    return path, json.loads(json.dumps(BODIES[path]))


async def exchange(running: Any, sent: Malformed) -> tuple[int | None, bytes]:
    """Send a request and read the response: its status and body. Incomplete requests end with a disconnect."""
    reader, writer = await asyncio.open_connection(running.host, running.port)
    try:
        writer.write(sent.data)
        if not sent.answered:
            writer.write_eof()
        return await asyncio.wait_for(read_answer(reader, head_only=sent.data.startswith(b"HEAD")), 60)

    except (ConnectionError, asyncio.IncompleteReadError):
        return None, b""
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader, *, head_only: bool) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        head = await reader.readuntil(b"\r\n\r\n")
    status, headers = int(head.split()[1]), head.lower()
    if head_only:
        return status, b""
    if b"content-length: " in headers:
        return status, await reader.readexactly(int(headers.split(b"content-length: ")[1].split()[0]))
    if b"transfer-encoding: chunked" not in headers:
        return status, await reader.read()
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    return status, body


def message_of(body: bytes) -> str:
    """Return the message of an error: in OpenAI's format or Anthropic's, or the plain text of the HTTP layer below."""
    if not body.startswith(b"{"):
        return body.decode()
    told = json.loads(body)
    error = told["error"]
    assert set(error) == ({"message", "type", "details"} if "type" in told else {"message", "type", "param", "code"})
    assert error["type"] in ("invalid_request_error", "not_found_error", "request_too_large")
    return str(error["message"])


async def refused(fresh: Any, requests: Iterator[Malformed], caplog: pytest.LogCaptureFixture) -> Counter[int | None]:
    """Send all requests; return the count of each status."""
    statuses: Counter[int | None] = Counter()
    for sent in requests:
        status, body = await exchange(fresh, sent)
        statuses[status] += 1
        told = (sent.kind, sent.data[:300], status, body[:300])
        if status == 501 and NOT_KEPT in body:
            continue
        assert status is None or status < 500, told
        assert status is not None or not sent.answered, told
        if status is not None and status >= 400 and not sent.data.startswith(b"HEAD"):
            assert len(message_of(body)) > 10, told
    assert not fresh.ended.done()
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
    await fresh.engine.until(lambda: not fresh.engine.running)
    answer = await fresh.openai().completions.create(model="fake", prompt="still there?")
    assert answer.choices[0].text == "Hello!"
    assert statuses[200] > 10, "some are harmless: the mutations must not all be absurd"
    return statuses


async def test_malformed_requests_are_refused_with_a_reason(
    fresh: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_module, "LINGER_SECONDS", 0.05)
    statuses = await refused(fresh, malformed_requests(SEED, COUNT), caplog)
    assert statuses[400] > COUNT / 2
    assert {404, 405, 413} <= statuses.keys()


async def test_malformed_responses_are_refused_with_a_reason(fresh: Any, caplog: pytest.LogCaptureFixture) -> None:
    statuses = await refused(fresh, malformed_responses(SEED, COUNT), caplog)
    assert statuses[400] > COUNT / 4
    assert statuses.keys() <= {200, 400, 404}
