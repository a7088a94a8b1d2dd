"""A secret in whatever clients send is in no log line, label or span.

An `x-request-id` that is a plain word is no such place: it is there to be found in logs. Nor is a valid `tracestate`,
which clients write for tracing systems.
"""

from __future__ import annotations

import asyncio
import json
import random
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from operator_support.apiserver import until
from telemetry_support.collectors import Received, http_collector
from telemetry_support.plant import MODEL, Plant, running_plant

SECRET = "sk-canary-7c1f9be2"
REQUESTS = 10_000
ABREAST = 16
OPTIONS = ("--kv-memory", "8MiB", "--max-model-len", "512", "--dtype", "float32")


@pytest.fixture
def collector() -> Iterator[Received]:
    with http_collector() as found:
        yield found


@pytest.fixture
def plant(model: Path, collector: Received, tmp_path: Path) -> Iterator[Plant]:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
    with running_plant(model, tmp_path, [environment] * 3, *OPTIONS) as found:
        yield found


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {name: {"type": "string", "description": SECRET}}}
    return {"type": "function", "function": {"name": name, "description": SECRET, "parameters": parameters}}


def headers_of(rng: random.Random) -> dict[str, str]:
    places = [
        {"authorization": f"Bearer {SECRET}"},
        {"x-api-key": SECRET},
        {"cookie": f"session={SECRET}"},
        {"user-agent": SECRET},
        {"x-request-id": f"{SECRET}/1"},
        {"traceparent": SECRET},
        {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01-{SECRET}"},
        {"traceparent": f"01-{'1' * 32}-{'2' * 16}-01-{SECRET}"},
        {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "tracestate": f"{SECRET}; {SECRET}"},
        {"baggage": f"key={SECRET}"},
        {"x-client-timeout": SECRET},
        {"accept": SECRET},
        {"x-plimsoll-tenant": SECRET},
        {SECRET: SECRET},
        {},
    ]
    return rng.choice(places)


def bodies_of(rng: random.Random) -> dict[str, Any] | bytes:
    chat: dict[str, Any] = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": SECRET}]}
    text: dict[str, Any] = {"model": MODEL, "max_tokens": 2, "prompt": SECRET}
    call = {"id": SECRET, "type": "function", "function": {"name": SECRET, "arguments": f'{{"a": "{SECRET}"}}'}}
    turns = [
        {"role": "user", "content": "w4"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": SECRET, "content": SECRET},
    ]
    schema = {"type": "json_schema", "json_schema": {"name": SECRET, "schema": {"type": SECRET}}}
    bodies: list[dict[str, Any] | bytes] = [
        chat,
        text,
        chat | {"stream": True},
        text | {"n": 2, "stream": True},
        chat | {"tools": [tool(SECRET)], "tool_choice": {"type": "function", "function": {"name": SECRET}}},
        chat | {"messages": turns},
        chat | {"messages": [{"role": SECRET, "content": SECRET}]},
        chat | {"response_format": schema},
        chat | {"response_format": {"type": SECRET}},
        chat | {"user": SECRET, "metadata": {SECRET: SECRET}, "safety_identifier": SECRET},
        chat | {"prompt_cache_key": SECRET},
        chat | {"max_tokens": SECRET},
        chat | {SECRET: SECRET},
        chat | {"logit_bias": {SECRET: 1}},
        chat | {"guided_regex": f"({SECRET}"},
        text | {"stop": [SECRET]},
        text | {"suffix": SECRET},
        {"model": SECRET, "messages": [{"role": "user", "content": "w4"}]},
        {"model": SECRET, "prompt": "w4"},
        {"model": MODEL, "input": SECRET, "max_output_tokens": 2},
        {"model": MODEL, "input": "w4", "previous_response_id": SECRET},
        {"model": MODEL, "input": SECRET, "instructions": SECRET, "background": True},
        {"model": MODEL, "max_tokens": 2, "system": SECRET, "messages": [{"role": "user", "content": SECRET}]},
        json.dumps(chat).encode()[:-3],
        SECRET.encode(),
        json.dumps([SECRET]).encode(),
        b'{"model": "' + SECRET.encode() + b"\xff",
    ]
    return rng.choice(bodies)


def target_of(rng: random.Random) -> tuple[str, str]:
    api = ("chat/completions", "completions", "responses", "messages", "embeddings")
    return rng.choice(
        [
            *(("POST", f"/v1/{path}") for path in api),
            *(("POST", f"/v1/{path}") for path in api),
            ("POST", f"/v1/completions?key={SECRET}"),
            ("GET", f"/v1/responses/{SECRET}"),
            ("GET", f"/v1/responses/resp_{SECRET}"),
            ("POST", f"/v1/responses/resp_{SECRET}/cancel"),
            ("DELETE", f"/v1/files/{SECRET}"),
            ("GET", f"/v1/batches/{SECRET}"),
            ("GET", f"/v1/models/{SECRET}"),
            ("GET", f"/{SECRET}"),
            ("POST", f"/v1/{SECRET}"),
            ("SK-CANARY-7C1F9BE2", "/v1/completions"),
            ("SK-CANARY-7C1F9BE2", "/v1/other"),
        ]
    )


async def ask(client: httpx.AsyncClient, url: str, number: int) -> int:
    """Send a request; return its status."""
    rng = random.Random(number)
    method, path = target_of(rng)
    body = bodies_of(rng)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", **headers_of(rng)}
    return (await client.request(method, url + path, content=data, headers=headers)).status_code


async def send_all(urls: list[str]) -> Counter[int]:
    """Send the requests, each to one of these servers; return their statuses."""
    gate = asyncio.Semaphore(ABREAST)
    async with httpx.AsyncClient(timeout=120) as client:

        async def one(number: int) -> int:
            async with gate:
                return await ask(client, urls[number % len(urls)], number)

        return Counter(await asyncio.gather(*map(one, range(REQUESTS))))


def _all_sent(plant: Plant) -> bool:
    """Return whether each request of the gateway's clients is a trace that was sent."""
    samples = plant.gateway.samples()
    return samples["plimsoll_traces_total/sent"] >= samples["plimsoll_gateway_requests_total"]


def lines_with_secret(text: str) -> list[str]:
    return [line for line in text.splitlines() if SECRET.lower() in line.lower()]


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_secret_is_found_nowhere(plant: Plant, collector: Received) -> None:
    statuses = await send_all([plant.gateway.url, plant.gateway.url, plant.runtimes[0].url])
    assert statuses[200] > REQUESTS / 20, statuses
    assert sum(statuses[code] for code in (400, 404, 405, 422)) > REQUESTS / 20
    assert not any(code >= 500 and code not in (501, 503) for code in statuses), statuses
    for part in plant.parts:
        text = (await asyncio.to_thread(urllib.request.urlopen, part.metrics)).read().decode()
        assert "plimsoll_" in text
        assert lines_with_secret(text) == [], f"in the metrics of {part.name}"
    assert await asyncio.to_thread(until, lambda: _all_sent(plant), 60.0)
    assert {span.name for span in collector.spans()} >= {"POST /v1/chat/completions", "attempt", "decode", "HTTP other"}
    for body in collector.bodies:
        assert SECRET.encode() not in body.lower(), f"in a span: {lines_with_secret(body.decode('latin-1'))}"
    for part in plant.parts:
        assert lines_with_secret(part.log.read_text()) == [], f"in the log of {part.name}"
