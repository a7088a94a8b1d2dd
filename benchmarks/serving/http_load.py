"""Our server under streaming users: started as a person would, measured from the client's side."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from serving.workloads import Request, Workload

NAME = "small"
START_SECONDS = 120


@dataclass(slots=True)
class Timeline:
    """When the tokens of one request arrived, in seconds since it was sent."""

    arrivals: list[float] = field(default_factory=list)


@contextlib.contextmanager
def server(model: Path, threads: int) -> Iterator[str]:
    """`plimsoll serve` on a free loopback port; yields its URL once it is ready."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    program = str(Path(sys.executable).parent / "plimsoll")
    command = [program, "serve", str(model), "--name", NAME, "--port", str(port)]
    command += ["--dtype", "bfloat16", "--kv-memory", "2GiB", "--max-model-len", "2048", "--threads", str(threads)]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            asyncio.run(_ready(url))
            yield url
        except (aiohttp.ClientError, TimeoutError):
            log.seek(0)
            print(log.read()[-3000:], file=sys.stderr)
            raise
        finally:
            process.terminate()
            process.wait(timeout=60)


def run(workload: Workload, url: str, salt: str) -> dict[str, Any]:
    """Stream every request with `users` at a time; throughput and the client's latencies.

    What an earlier run left in the prefix cache serves only those with the same `salt`.
    """
    return asyncio.run(_run(workload, url, salt))


async def _run(workload: Workload, url: str, salt: str) -> dict[str, Any]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        todo = iter(workload.requests)
        timelines: list[Timeline] = []

        async def user() -> None:
            for request in todo:
                timelines.append(await _stream(session, url, request, salt))

        start = time.perf_counter()
        await asyncio.gather(*(user() for _ in range(workload.users or 1)))
        seconds = time.perf_counter() - start
    first = sorted(t.arrivals[0] for t in timelines)
    gaps = sorted(b - a for t in timelines for a, b in zip(t.arrivals, t.arrivals[1:], strict=False))
    return {"seconds": seconds, "ttft_ms": _percentiles(first), "itl_ms": _percentiles(gaps)}


async def _ready(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.2)
    raise TimeoutError(f"{url} was not ready within {START_SECONDS} s")


async def _stream(session: aiohttp.ClientSession, url: str, request: Request, salt: str) -> Timeline:
    body = {
        "model": NAME,
        "prompt": list(request.prompt),
        "max_tokens": request.output_len,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "cache_salt": salt,
        "stream_options": {"include_usage": True},
    }
    timeline, generated, start = Timeline(), 0, time.perf_counter()
    async with session.post(f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for event in _events(response):
            if event["choices"]:
                timeline.arrivals.append(time.perf_counter() - start)
            if (usage := event.get("usage")) is not None:
                generated = usage["completion_tokens"]
    if generated != request.output_len:
        raise RuntimeError(f"{generated} tokens came instead of {request.output_len}")
    return timeline


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        data = line.strip().removeprefix(b"data: ")
        if data and data != b"[DONE]":
            yield json.loads(data)


def _percentiles(values: list[float]) -> dict[str, float]:
    return {f"p{p}": round(1000 * values[min(len(values) - 1, len(values) * p // 100)], 2) for p in (50, 80, 99)}
