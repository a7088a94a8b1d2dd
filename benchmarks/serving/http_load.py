"""A server of OpenAI's completions with streaming users: started like by a user, measured by its client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp
import psutil

from serving.latency import Timeline, expect, latencies
from serving.workloads import Request, Workload

START_SECONDS = 120
LOG_TAIL = 3000


class HttpServer:
    """A server's process on a free loopback port, and its users."""

    model = "measured"

    def __init__(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        """`environment`: variables in addition to this process's."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        self._process = subprocess.Popen(
            [*command, "--port", str(port)], stdout=self._log, stderr=self._log, env=os.environ | (environment or {})
        )
        try:
            asyncio.run(self._ready())
        except BaseException:
            self.close()
            raise

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the process and its children so far."""
        own = psutil.Process(self._process.pid)
        times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    def run(self, workload: Workload) -> dict[str, Any]:
        """Send as many requests at a time as there are users (streaming), or all at once (not streaming). Return
        `seconds`, and with users the `latencies`.
        """
        return asyncio.run(self._run(workload))

    def batch(self, requests: Sequence[Request], users: int) -> float:
        """Return seconds in which `users` clients get all complete responses, each sending its next request
        immediately.
        """
        return asyncio.run(self._batch(requests, users))

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(timeout=60)
        self._log.close()

    async def _run(self, workload: Workload) -> dict[str, Any]:
        async with _session() as session:
            if workload.primer is not None:
                await self._answer(session, workload.primer)
            start = time.perf_counter()
            timelines = await self._serve(session, workload)
            seconds = time.perf_counter() - start
        measured = latencies(timelines, workload.users) if workload.users else {}
        return {"seconds": seconds, **measured}

    async def _batch(self, requests: Sequence[Request], users: int) -> float:
        todo = iter(requests)

        async def user(session: aiohttp.ClientSession) -> None:
            for request in todo:
                await self._answer(session, request)

        async with _session() as session:
            start = time.perf_counter()
            await asyncio.gather(*(user(session) for _ in range(users)))
            return time.perf_counter() - start

    async def _serve(self, session: aiohttp.ClientSession, workload: Workload) -> list[Timeline]:
        """Return the times of each request's tokens, in the order in which the requests were sent; [] without users."""
        if workload.users is None:
            await asyncio.gather(*(self._answer(session, request) for request in workload.requests))
            return []
        todo, timelines = iter(workload.requests), list[Timeline]()

        async def user() -> None:
            for request in todo:
                timelines.append(Timeline(time.perf_counter()))
                await self._stream(session, request, timelines[-1])

        await asyncio.gather(*(user() for _ in range(workload.users)))
        return timelines

    async def _ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        async with aiohttp.ClientSession() as session:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise RuntimeError(f"the server ended with {self._process.returncode}: {self._tail()}")
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{self.url}/health") as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(0.2)
        raise TimeoutError(f"{self.url} was not ready within {START_SECONDS} s: {self._tail()}")

    async def _answer(self, session: aiohttp.ClientSession, request: Request) -> None:
        async with session.post(f"{self.url}/v1/completions", json=self._body(request)) as response:
            await _raise_for_status(response)
            expect((await response.json())["usage"]["completion_tokens"], request.output_len)

    async def _stream(self, session: aiohttp.ClientSession, request: Request, timeline: Timeline) -> None:
        body = self._body(request) | {"stream": True, "stream_options": {"include_usage": True}}
        generated = 0
        async with session.post(f"{self.url}/v1/completions", json=body) as response:
            await _raise_for_status(response)
            async for event in _events(response):
                if event["choices"]:
                    timeline.arrivals.append(time.perf_counter())
                if (usage := event.get("usage")) is not None:
                    generated = usage["completion_tokens"]
        expect(generated, request.output_len)

    def _body(self, request: Request) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": list(request.prompt),
            "max_tokens": request.output_len,
            "temperature": 0,
            "ignore_eos": True,
        }

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read()[-LOG_TAIL:]


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def _session() -> aiohttp.ClientSession:
    """Return a session with one connection per request, because a server may close an idle one just when the next
    request is sent.
    """
    timeout = aiohttp.ClientTimeout(total=None)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0, force_close=True))


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        data = line.strip().removeprefix(b"data: ")
        if data and data != b"[DONE]":
            yield json.loads(data)


async def _raise_for_status(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        raise RuntimeError(f"the server answered {response.status}: {(await response.text())[:LOG_TAIL]}")
