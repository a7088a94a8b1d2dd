"""Three gateway processes: the requests they admit together, also after one is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from plimsoll_gateway.keys.secret import digest_of, new_key
from plimsoll_gateway.server.main import main

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

REQUESTS, STREAMS = 200, 20


@dataclass
class Gateways:
    """The processes, each with its port, its metrics port and its log."""

    processes: list[asyncio.subprocess.Process]
    ports: list[int]
    metrics: list[int]
    client: aiohttp.ClientSession
    keys: dict[str, str]

    async def ask(self, at: int, key: str) -> aiohttp.ClientResponse:
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        url = f"http://127.0.0.1:{self.ports[at]}/v1/completions"
        return await self.client.post(url, json={"model": "m"}, headers=headers)

    async def series(self, at: int) -> dict[str, float]:
        async with self.client.get(f"http://127.0.0.1:{self.metrics[at]}/metrics") as response:
            lines = (await response.text()).splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}

    async def until(self, at: int, holds: Callable[[dict[str, float]], bool]) -> None:
        """Wait until the metrics of one gateway satisfy a condition; each poll waits for a response."""
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    if holds(await self.series(at)):
                        return
                await asyncio.sleep(0.05)


@pytest.fixture
async def gateways(
    tmp_path: Path, world: World, ok: Behaviour, unused_tcp_port_factory: Callable[[], int]
) -> AsyncIterator[Gateways]:
    async def behave(request: Request) -> None:
        if request.headers["x-plimsoll-tenant"] == "rate":
            await ok(request)
        else:
            request.begin_events()

    upstream = await world.upstream(behave)
    keys = {name: new_key() for name in ("rate", "streams")}
    (tmp_path / "keys").mkdir()
    limits = {"rate": {"requestsPerMinute": REQUESTS}, "streams": {"streams": STREAMS}}
    for name, key in keys.items():
        terms = {"hashes": [digest_of(key.encode())], **limits[name]}
        (tmp_path / "keys" / f"{name}.json").write_text(json.dumps(terms))
    (tmp_path / "token").write_text("a-credential-for-the-runtimes")
    (tmp_path / "secret").write_text("a-secret-of-the-gateways")
    replica = {"id": "r", "url": f"http://127.0.0.1:{upstream.port}", "ready": True}
    model = {"namespace": "n", "name": "m", "servedNames": ["m"], "created": "2026-01-01T00:00:00Z", "message": ""}
    (tmp_path / "table.json").write_text(json.dumps({"models": [model | {"replicas": [replica]}]}))
    ports, metrics, peers = ([unused_tcp_port_factory() for _ in range(3)] for _ in range(3))
    shared = ["--table", str(tmp_path / "table.json"), "--host", "127.0.0.1", "--lame-duck-seconds", "0"]
    shared += ["--keys", str(tmp_path / "keys"), "--gateway-token-file", str(tmp_path / "token")]
    shared += ["--peer-secret-file", str(tmp_path / "secret")]
    shared += [f"--peers=127.0.0.1:{peer}" for peer in peers]
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "plimsoll_gateway", *shared, "--port", str(port)),
            *("--metrics-port", str(page), "--peer-address", f"127.0.0.1:{peer}"),
            stderr=asyncio.subprocess.DEVNULL,
        )
        for port, page, peer in zip(ports, metrics, peers, strict=True)
    ]
    made = Gateways(processes, ports, metrics, world.client, keys)
    try:
        for at in range(3):
            await made.until(at, lambda series: series.get("plimsoll_gateway_answering_peers") == 2)
        yield made
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def admitted(gateways: Gateways, order: list[int]) -> int:
    """Return how many of these sequential requests are admitted."""
    count = 0
    for at in order:
        async with await gateways.ask(at, "rate") as response:
            assert response.status in (200, 429)
            count += response.status == 200
    return count


@pytest.mark.long
async def test_together_they_let_in_the_limit_of_a_key(gateways: Gateways) -> None:
    """Most requests go to one gateway. It gets the others' unused quota within the same minute, and no more."""
    count = 0
    async with asyncio.timeout(50):  # within a minute of the first one
        while count < 0.8 * REQUESTS:
            count += await admitted(gateways, [0] * 5)
        while count < 0.95 * REQUESTS:
            count += await admitted(gateways, [0, 1, 2])
        count += await admitted(gateways, [0, 1, 2] * 20)
    assert 0.95 * REQUESTS <= count <= REQUESTS
    shares = [(await gateways.series(at))['plimsoll_gateway_key_share{key="rate",limit="requests"}'] for at in range(3)]
    assert sum(shares) <= REQUESTS
    assert shares[0] >= 0.8 * REQUESTS, "the share covers the usage"
    ages = [(await gateways.series(at))['plimsoll_gateway_lease_age_seconds{key="rate"}'] for at in range(3)]
    assert all(age >= 0 for age in ages)


@pytest.mark.long
async def test_streams_are_exact_but_for_one_a_gateway(gateways: Gateways) -> None:
    held: list[aiohttp.ClientResponse] = []
    try:
        async with asyncio.timeout(60):
            while len(held) < STREAMS - 2:
                for at in (0, 0, 0, 1, 2):
                    response = await gateways.ask(at, "streams")
                    if response.status == 200:
                        held.append(response)
                        continue
                    assert response.status == 429
                    assert response.headers["retry-after"] == "1"
                    response.close()
        assert STREAMS - 2 <= len(held) <= STREAMS
    finally:
        for response in held:
            response.close()


@pytest.mark.long
async def test_when_one_is_killed_the_others_keep_their_shares(gateways: Gateways) -> None:
    await admitted(gateways, [0, 1, 2] * 5)
    name = 'plimsoll_gateway_key_share{key="rate",limit="requests"}'
    for at in (1, 2):
        await gateways.until(at, lambda series: series.get(name, 0) > 0)
    gateways.processes[0].send_signal(signal.SIGKILL)
    await gateways.processes[0].wait()
    for at in (1, 2):
        await gateways.until(at, lambda series: series["plimsoll_gateway_answering_peers"] == 1)
    shares = [(await gateways.series(at))[name] for at in (1, 2)]
    assert min(shares) >= REQUESTS // 3 - 10
    assert sum(shares) <= REQUESTS
    assert await admitted(gateways, [1, 2] * 10) == 20


def test_a_secret_that_cannot_be_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("a-credential-for-the-runtimes")
    arguments = ["--table", "t", "--keys", str(tmp_path), "--gateway-token-file", str(tmp_path / "token")]
    arguments += ["--peers=a:1", "--peer-address=127.0.0.1:1", "--peer-secret-file", str(tmp_path / "no")]
    assert main(arguments) == 1
    assert "--peer-secret-file" in capsys.readouterr().err
