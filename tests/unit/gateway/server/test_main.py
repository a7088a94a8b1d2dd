"""The gateway as a process: options, signals, an orderly stop."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from plimsoll_gateway.admission.body_memory import MOST_HELD
from plimsoll_gateway.admission.limits import BODY_BYTES, MODEL_PATHS, Limits
from plimsoll_gateway.keys.command import main as make_key
from plimsoll_gateway.keys.secret import new_key
from plimsoll_gateway.server.main import main
from plimsoll_gateway.server.options import parse_options

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, Upstream, World


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--table", "x", "--namespace", "a"], "--table replaces the cluster"),
        (["--namespace", "a", "--all-namespaces"], "mutually exclusive"),
        (["--table", "x", "--name-rule", "a=b"], "--table has one owner for each name"),
        (["--all-namespaces", "--name-rule", "a"], "argument --name-rule: 'a' has no =; write NAMES=NAMESPACES"),
        ([], "no namespace to watch: this is not a pod with a service account token; give --namespace"),
        (["--all-namespaces", "--port", "70000"], "argument --port: '70000' is not a whole number from 0 to 65535"),
        (["--all-namespaces", "--drain-seconds", "-1"], "'-1' is not a number of seconds from 0"),
        (["--all-namespaces", "--max-body-bytes", "0"], "'0' is not a whole number from 1"),
        (["--all-namespaces", "--max-body-bytes", "/v1/audio=5"], "'/v1/audio' is not one of /v1/chat/completions, "),
        (["--all-namespaces", "--max-body-bytes", "/tokenize=x"], "'x' is not a whole number from 1"),
        (
            ["--all-namespaces", "--max-held-bytes", "10000000"],
            "--max-body-bytes 8388608 exceeds three quarters of --max-held-bytes 10000000 (a quarter is reserved for "
            "small requests); lower the former, or raise the latter to 11184811 or more",
        ),
        (["--all-namespaces", "--max-waiting", "0"], "argument --max-waiting: '0' is not a whole number from 1"),
        (["--all-namespaces", "--max-connections", "0"], "--max-connections: '0' is not a whole number from 1"),
        (["--all-namespaces", "--wake-seconds", "-1"], "argument --wake-seconds: '-1' is not a number of seconds"),
        (["--all-namespaces", "--port", "http"], "argument --port: 'http' is not a whole number from 0 to 65535"),
        (["--all-namespaces", "--port", "0" * 30 + "99999"], "is not a whole number from 0 to 65535"),
        (["--all-namespaces", "--drain-seconds", "long"], "'long' is not a number of seconds from 0"),
        (["--all-namespaces", "--drain-seconds", "nan"], "'nan' is not a number of seconds from 0"),
        (["--all-namespaces", "--fd", "9" * 30], "is not a whole number from 0"),
        (["--all-namespaces", "--log-format", "xml"], "argument --log-format: invalid choice: 'xml'"),
        (["--all-namespaces", "--access-log", "some"], "argument --access-log: invalid choice: 'some'"),
        (["--all-name"], "unrecognized arguments"),
        (["--all-namespaces", "--keys", "folder"], "--keys requires --gateway-token-file"),
        (["--all-namespaces", "--peers", "a:1"], "--peers requires --keys"),
        (
            ["--all-namespaces", "--keys", "f", "--gateway-token-file", "t", "--peers", "a:1"],
            "--peers, --peer-address and --peer-secret-file require each other",
        ),
        (["--all-namespaces", "--peers", "a"], "argument --peers: 'a' is not HOST:PORT"),
        (["--all-namespaces", "--peer-address", "fd00::1:80"], "write an IPv6 address as [ADDRESS]:PORT"),
    ],
)
def test_options_that_make_no_sense(arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        parse_options(arguments)
    assert refused.value.code == 2
    assert what in capsys.readouterr().err


def test_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_options(["--namespace", "a", "--namespace", "b"]).namespaces == ("a", "b")
    assert parse_options(["--all-namespaces"]).namespaces is None
    own = tmp_path / "namespace"
    own.write_text("team\n")
    monkeypatch.setattr("plimsoll_gateway.server.options.NAMESPACE_FILE", own)
    assert parse_options([]).namespaces == ("team",)


def test_limits_of_all_paths_and_of_one() -> None:
    """The limit of a single path takes precedence, in any order."""
    limits = parse_options(["--all-namespaces"]).limits
    assert limits == Limits()
    assert max(limits.body_bytes[path] for path in MODEL_PATHS) == 8 << 20
    given = ["--max-body-bytes", "/tokenize=7", "--max-body-bytes", "5", "--max-held-bytes=99", "--max-waiting=3"]
    limits = parse_options(["--all-namespaces", *given]).limits
    assert limits.body_bytes == {**BODY_BYTES, **dict.fromkeys(MODEL_PATHS, 5), "/tokenize": 7}
    assert (
        parse_options(["--all-namespaces", "--max-body-bytes", f"/v1/files={1 << 40}"]).limits.held_bytes == MOST_HELD
    )
    assert (limits.held_bytes, limits.waiting) == (99, 3)
    given = ["--max-connections", "9", "--hold-seconds", "1.5", "--wake-seconds", "60"]
    limits = parse_options(["--all-namespaces", *given]).limits
    assert (limits.connections, limits.hold_seconds, limits.wake_seconds) == (9, 1.5, 60)
    assert parse_options(["--all-namespaces", "--max-held-bytes", "11184811"]).limits.held_bytes == 11184811


class Process:
    """A running gateway."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, table: Path) -> None:
        self._process = process
        self.url = url
        self._table = table

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        async with asyncio.timeout(60):
            return await self._process.wait()

    def show(self, upstream: Upstream) -> None:
        replica = {"id": "r", "url": f"http://127.0.0.1:{upstream.port}", "ready": True}
        model = {
            "namespace": "n",
            "name": "m",
            "servedNames": ["m"],
            "created": "2026-01-01T00:00:00Z",
            "message": "",
        }
        fresh = self._table.with_suffix(".new")
        fresh.write_text(json.dumps({"models": [model | {"replicas": [replica]}]}))
        fresh.replace(self._table)

    async def until_healthy(self, client: aiohttp.ClientSession, wanted: int = 200) -> None:
        """Wait for a status of /health; each poll waits for a response, so that this is not a busy loop."""
        async with asyncio.timeout(60):
            while True:
                try:
                    async with client.get(f"{self.url}/health") as response:
                        if response.status == wanted:
                            return
                except aiohttp.ClientConnectionError:
                    pass
                await asyncio.sleep(0.02)


@pytest.fixture
async def process(tmp_path: Path, unused_tcp_port: int, request: pytest.FixtureRequest) -> AsyncIterator[Process]:
    options: list[str] = getattr(request, "param", ["--lame-duck-seconds", "0", "--drain-seconds", "120"])
    table = tmp_path / "table.json"
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "plimsoll_gateway", "--table", str(table)),
        *("--host", "127.0.0.1", "--port", str(unused_tcp_port), *options),
        stderr=asyncio.subprocess.DEVNULL,
    )
    yield Process(started, f"http://127.0.0.1:{unused_tcp_port}", table)
    if started.returncode is None:
        started.kill()
        await started.wait()


async def test_a_process_with_keys_lets_in_who_has_one(
    tmp_path: Path, unused_tcp_port: int, world: World, ok: Behaviour, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command to a response, and a key created while the gateway runs."""
    folder, token, table = tmp_path / "keys", tmp_path / "token", tmp_path / "table.json"
    folder.mkdir()
    token.write_text("a-credential-for-the-runtimes")
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "plimsoll_gateway", "--table", str(table), "--lame-duck-seconds", "0"),
        *("--host", "127.0.0.1", "--port", str(unused_tcp_port)),
        *("--keys", str(folder), "--gateway-token-file", str(token)),
        stderr=asyncio.subprocess.PIPE,
    )
    process = Process(started, f"http://127.0.0.1:{unused_tcp_port}", table)
    upstream = await world.upstream(ok)
    process.show(upstream)
    await process.until_healthy(world.client)
    assert make_key(["team-a", "--into", str(folder)]) == 0
    key = capsys.readouterr().out.strip()

    async def ask(given: str) -> int:
        headers = {"authorization": f"Bearer {given}"}
        async with world.client.post(f"{process.url}/v1/completions", json={"model": "m"}, headers=headers) as response:
            return response.status

    async with asyncio.timeout(60):
        while await ask(key) != 200:
            await asyncio.sleep(0.02)  # until it has reloaded the folder
    assert await ask(new_key()) == 401
    assert upstream.requests[0].headers["x-plimsoll-tenant"] == "team-a"
    process.signal(signal.SIGTERM)
    _, said = await started.communicate()
    assert started.returncode == 0
    assert b"all requests are refused" in said
    assert b"1 API keys loaded" in said
    assert key.encode() not in said
    assert b"a-credential" not in said


@pytest.mark.parametrize("process", [["--cors-origin", "https://chat.example.com"]], indirect=True)
async def test_a_process_answers_browsers(process: Process, world: World, ok: Behaviour) -> None:
    process.show(await world.upstream(ok))
    await process.until_healthy(world.client)
    headers = {"origin": "https://chat.example.com", "access-control-request-method": "POST"}
    async with world.client.options(f"{process.url}/v1/completions", headers=headers) as response:
        assert response.status == 204
        assert response.headers["access-control-allow-origin"] == "https://chat.example.com"


def test_a_credential_that_cannot_be_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--table", "t", "--keys", str(tmp_path), "--gateway-token-file", str(tmp_path / "no")]
    assert main(arguments) == 1
    assert "cannot read" in capsys.readouterr().err


async def test_running_answers_finish_before_it_ends(process: Process, world: World) -> None:
    release = asyncio.Event()

    async def behave(request: Request) -> None:
        request.begin_events()
        request.chunk("data: 0\n\n")
        await release.wait()
        request.chunk("data: [DONE]\n\n")
        request.end()

    process.show(await world.upstream(behave))
    await process.until_healthy(world.client)
    async with world.client.post(f"{process.url}/v1/completions", json={"model": "m"}) as response:
        await response.content.readuntil(b"\n\n")
        process.signal(signal.SIGTERM)
        await asyncio.sleep(0.3)  # several iterations of its loop: it must still run
        release.set()
        assert await response.content.read() == b"data: [DONE]\n\n"
    assert await process.ended() == 0
    with pytest.raises(aiohttp.ClientConnectionError):
        await world.client.get(f"{process.url}/health")


@pytest.mark.parametrize("process", [["--lame-duck-seconds", "0", "--drain-seconds", "0.2"]], indirect=True)
async def test_what_outlives_the_grace_period_ends_with_an_error(process: Process, world: World) -> None:
    async def behave(request: Request) -> None:
        request.begin_events()
        request.chunk("data: 0\n\n")

    process.show(await world.upstream(behave))
    await process.until_healthy(world.client)
    async with world.client.post(f"{process.url}/v1/completions", json={"model": "m"}) as response:
        await response.content.readuntil(b"\n\n")
        process.signal(signal.SIGTERM)
        assert b"gateway_stopping" in await response.content.read()
    assert await process.ended() == 0


@pytest.mark.parametrize("process", [["--lame-duck-seconds", "60"]], indirect=True)
async def test_new_requests_are_served_while_health_fails(process: Process, world: World, ok: Behaviour) -> None:
    process.show(await world.upstream(ok))
    await process.until_healthy(world.client)
    process.signal(signal.SIGTERM)
    await process.until_healthy(world.client, 503)
    async with world.client.post(f"{process.url}/v1/completions", json={"model": "m"}) as response:
        assert response.status == 200
    process.signal(signal.SIGTERM)
    assert await process.ended() == 0


async def test_metrics_on_a_port_of_their_own(
    world: World, tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    port, other = unused_tcp_port_factory(), unused_tcp_port_factory()
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "plimsoll_gateway", "--table", str(tmp_path / "t"), "--lame-duck-seconds", "0"),
        *("--host", "127.0.0.1", "--port", str(port), "--metrics-port", str(other)),
        stderr=asyncio.subprocess.DEVNULL,
    )
    process = Process(started, f"http://127.0.0.1:{port}", tmp_path / "t")
    try:
        await process.until_healthy(world.client, 503)
        async with world.client.get(f"{process.url}/metrics") as response:
            assert response.status == 404
        async with world.client.get(f"http://127.0.0.1:{other}/metrics") as response:
            assert response.status == 200
            assert "plimsoll_gateway_requests_total" in await response.text()
        for path in ("/health", "/v1/models"):
            async with world.client.get(f"http://127.0.0.1:{other}{path}") as response:
                assert response.status == 404
        async with world.client.post(f"http://127.0.0.1:{other}/metrics") as response:
            assert response.status == 405
        process.signal(signal.SIGTERM)
        assert await process.ended() == 0
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


@pytest.mark.parametrize("option", ["--port", "--metrics-port"])
async def test_a_port_in_use_is_told(world: World, tmp_path: Path, option: str) -> None:
    port = world.url.rpartition(":")[2]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "plimsoll_gateway", "--table", str(tmp_path / "t")),
        *("--host", "127.0.0.1", "--port", "0", option, port),
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 1
    assert said.decode().startswith(f"plimsoll-gateway: cannot listen on 127.0.0.1:{port}: ")
