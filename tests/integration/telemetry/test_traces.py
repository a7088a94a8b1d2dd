"""Requests through a gateway and two servers are whole traces in a real Jaeger and a real Zipkin.

Without them, which `python3 e2e/cluster telemetry` fetches and builds, the tests are skipped.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from operator_support.apiserver import until
from telemetry_support.plant import GATEWAY, MODEL, RUNTIME, Part, Plant, running_plant
from telemetry_support.tools import BACKENDS, Backend, MissingToolError, SeenSpan

REQUESTS = 500
ALONE = 40
ABREAST = 24
SECONDS = 60.0
# Few KV blocks, so that sequences are preempted.
OPTIONS = ("--kv-memory", "4MiB", "--max-model-len", "512", "--max-sequences", "16", "--dtype", "float32")
ROUND_US = 2
"""Backends keep microseconds."""


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    try:
        with BACKENDS[request.param](tmp_path) as found:
            yield found
    except MissingToolError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def plant(model: Path, backend: Backend, tmp_path: Path) -> Iterator[Plant]:
    """One server sends by gRPC, the other one and the gateway by HTTP, if the backend has OTLP."""
    environments = [backend.environment(protocol) for protocol in ("http/protobuf", "grpc", "http/protobuf")]
    with running_plant(model, tmp_path, environments, *OPTIONS) as found:
        yield found


def body_of(number: int) -> dict[str, Any]:
    """Return a request; its number decides whether it is a stream, long, or has several choices."""
    rng = random.Random(number)
    body: dict[str, Any] = {"model": MODEL, "max_tokens": rng.choice([1, 8, 30, 60, 120]), "temperature": 1.0}
    body |= {"n": rng.choice([1, 1, 1, 3]), "stream": rng.random() < 0.5, "ignore_eos": True}
    text = " ".join(f"w{rng.randrange(3, 500)}" for _ in range(rng.choice([3, 40, 150])))
    if rng.random() < 0.5:
        return body | {"messages": [{"role": "user", "content": text}]}
    return body | {"prompt": text}


async def ask(client: httpx.AsyncClient, number: int, *, hang_up: bool = False) -> int:
    """Send a request and read its whole response, or hang up after the first part of it; return the status."""
    body = body_of(number) | ({"stream": True, "max_tokens": 200} if hang_up else {})
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    headers = {"x-request-id": f"load-{number}"}
    async with client.stream("POST", path, json=body, headers=headers) as response:
        async for _ in response.aiter_bytes():
            if hang_up:
                break
        return response.status_code


async def load(url: str, numbers: Sequence[int], *, hang_up: int = 0) -> Counter[int]:
    """Send requests, some at a time; hang up on each `hang_up`-th."""
    gate = asyncio.Semaphore(ABREAST)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)) as client:

        async def one(number: int) -> int:
            async with gate:
                return await ask(client, number, hang_up=bool(hang_up and number % hang_up == 0))

        return Counter(await asyncio.gather(*map(one, numbers)))


def wall_times(url: str) -> dict[str, float]:
    """Send requests one after the other over one connection; return the client's time of each, in microseconds."""
    found: dict[str, float] = {}
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    for number in range(ALONE):
        name = f"alone-{number}"
        body = json.dumps({"model": MODEL, "prompt": "w5 " * 30, "max_tokens": 20, "ignore_eos": True})
        began = time.perf_counter()
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json", "x-request-id": name})
        response = connection.getresponse()
        response.read()
        found[name] = (time.perf_counter() - began) * 1e6
        assert response.status == 200
    connection.close()
    return found


def counted(plant: Plant) -> float:
    """Return how many traces were sent by all parts."""
    return sum(part.samples()["plimsoll_traces_total/sent"] for part in plant.parts)


def traces_of(backend: Backend, requests: int) -> dict[str, list[SeenSpan]]:
    """Return the traces, once there are as many as requests."""
    found: dict[str, list[SeenSpan]] = {}

    def complete() -> bool:
        nonlocal found
        found = backend.traces(GATEWAY)
        return len(found) >= requests

    assert until(complete, SECONDS), f"{len(found)} traces of {requests} requests"
    return found


def root_of(spans: Sequence[SeenSpan]) -> SeenSpan:
    (root,) = [span for span in spans if not span.parent]
    return root


def check_whole(spans: Sequence[SeenSpan]) -> None:
    """Check that each span has its parent and lies within it, and that the gateway's phases add up."""
    known = {span.id: span for span in spans}
    assert len(known) == len(spans), "two spans have the same id"
    assert root_of(spans).service == GATEWAY
    for span in spans:
        if not span.parent:
            continue
        assert span.parent in known, f"{span.name} has no parent"
        parent = known[span.parent]
        if span.service != parent.service:  # a server may end after its client has the last byte
            assert span.start >= parent.start - 2000, f"{span.name} begins before {parent.name}"
            continue
        assert span.start >= parent.start - ROUND_US, f"{span.name} begins before {parent.name}"
        ends = parent.start + parent.duration + ROUND_US
        assert span.start + span.duration <= ends, f"{span.name} ends after {parent.name}"
    for request in [span for span in spans if " /" in span.name]:
        phases = [span for span in spans if span.parent == request.id]
        assert sum(span.duration for span in phases) == pytest.approx(request.duration, abs=2 * len(phases) + 2)


def sums(traces: dict[str, list[SeenSpan]], name: str) -> float:
    """Return the seconds of all of an engine's spans of a name."""
    return sum(span.duration for spans in traces.values() for span in spans if span.name == name) / 1e6


def metric(parts: Sequence[Part], name: str) -> float:
    return sum(part.samples().get(name, 0.0) for part in parts)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_every_request_is_one_whole_trace(plant: Plant, backend: Backend) -> None:
    url = plant.gateway.url
    assert await load(url, range(REQUESTS)) == {200: REQUESTS}
    walls = wall_times(url)
    total = REQUESTS + ALONE
    # Starts of models and some steps of engines are traces too.
    assert until(lambda: counted(plant) >= 2 * total, SECONDS), [part.samples() for part in plant.parts]
    traces = traces_of(backend, total)
    assert len(traces) == total
    for spans in traces.values():
        check_whole(spans)
        services = Counter(span.service for span in spans)
        assert services.keys() == {GATEWAY, RUNTIME}, "each request is whole"

    roots = {root.tags["plimsoll.request_id"]: root for root in map(root_of, traces.values())}
    assert len(roots) == total
    over = [walls[name] - roots[name].duration for name in walls]
    typical = statistics.median(walls.values())
    # The least one: on a busy machine the client waits too, which is not the gateway's time.
    assert min(over) <= max(2000.0, 0.02 * typical), f"{over} of {typical} microseconds"

    attempts = defaultdict(list)
    for spans in traces.values():
        for span in spans:
            if span.name == "attempt":
                attempts[span.trace].append(span)
    retried = [found for found in attempts.values() if len(found) > 1]
    assert retried, "the replica that is gone was asked"
    assert metric([plant.gateway], "plimsoll_gateway_retries_total") == sum(
        len(found) - 1 for found in attempts.values()
    )
    for spans in retried:
        first, second = sorted(spans, key=lambda span: span.start)
        assert first.tags["error.type"] == "connect"
        children = [span for span in traces[first.trace] if span.parent in (first.id, second.id)]
        assert [span.parent for span in children] == [second.id]

    runtimes = plant.runtimes
    assert metric(runtimes, "plimsoll_preemptions_total") > 0
    for name in ("queue", "prefill", "decode"):
        seconds, spans_seconds = metric(runtimes, f"plimsoll_{name}_seconds_sum"), sums(traces, name)
        count = metric(runtimes, f"plimsoll_{name}_seconds_count")
        assert seconds == pytest.approx(spans_seconds, abs=max(1.0, count) * 4e-6 * 4), f"{name} of {count} choices"

    # Clients that hang up, and an engine that is killed.
    cut = range(REQUESTS, REQUESTS + 60)
    loading = asyncio.create_task(load(url, cut, hang_up=3))
    await asyncio.to_thread(until, lambda: runtimes[0].samples()["plimsoll_sequences_running"] > 2, SECONDS)
    runtimes[0].engine().kill()
    await loading
    traces = await asyncio.to_thread(traces_of, backend, total + len(cut))
    ids = {root_of(spans).tags["plimsoll.request_id"] for spans in traces.values()}
    assert {f"load-{number}" for number in cut} <= ids
    for spans in traces.values():
        check_whole(spans)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_collector_that_is_killed_fails_no_request(plant: Plant, backend: Backend) -> None:
    url = plant.gateway.url
    assert await load(url, range(30)) == {200: 30}
    loading = asyncio.create_task(load(url, range(30, 150)))
    await asyncio.sleep(0.5)
    backend.process.kill()
    assert await loading == {200: 120}

    def dropped() -> bool:
        return all(part.samples()["plimsoll_traces_total/not_taken"] > 0 for part in plant.parts)

    assert await asyncio.to_thread(until, dropped, SECONDS)
    for part in plant.parts:
        said = part.log.read_text()
        assert 1 <= said.count("traces could not be sent") <= 3
        assert "opentelemetry" not in said
