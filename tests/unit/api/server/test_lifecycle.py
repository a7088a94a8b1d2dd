"""A server's life: loading, ready, draining, and every way to end."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import openai
import pytest

from plimsoll_runtime.api.server import server as server_module
from plimsoll_runtime.api.server.config import ServerConfig
from plimsoll_runtime.api.server.listener import listen
from plimsoll_runtime.cli.main import main
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import RequestOutput
from plimsoll_runtime.errors import DeviceFailedError, EngineDeadError, SourceError, UsageError
from plimsoll_runtime.utils.progress import Transfer

BODY = {"model": "fake", "prompt": "Hi"}
HELLO: list[Any] = [{"role": "user", "content": "Hi"}]


class SlowLoad:
    """A load that waits, then fails with `error`."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.cancelled = False
        self.state: Any = None

    async def __call__(self, config: Any, state: Any) -> Any:
        self.state = state
        state.loading("weights", 0.25)
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise self._error


async def test_while_loading_every_request_is_told_to_come_back(run_server: Any) -> None:
    load = SlowLoad(SourceError("the disk is on fire"))
    async with run_server(load=load) as running, running.http() as http:
        await load.begun.wait()
        health = await http.get("/health")
        assert (health.status_code, health.headers["retry-after"]) == (503, "5")
        assert health.json() == {"status": "loading", "stage": "weights", "fraction": 0.25}
        assert (await http.get("/live")).status_code == 200
        assert 'plimsoll_ready{model="fake",namespace=""} 0.0' in (await http.get("/metrics")).text
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
            refused = await http.post(path, json=BODY)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert "loading (weights, 25%)" in refused.json()["error"]["message"]
        load.state.loading("download", 0.5, Transfer(1, 2))
        assert (await http.get("/health")).json()["bytes"] == {"done": 1, "total": 2}
        load.state.loading("weights", 0.0)
        assert "bytes" not in (await http.get("/health")).json()
        load.go_on.set()
        with pytest.raises(SourceError, match="the disk is on fire"):
            await running.ended


async def test_a_signal_while_loading_ends_it_cleanly(run_server: Any) -> None:
    load = SlowLoad(SourceError("never"))
    async with run_server(load=load) as running:
        await load.begun.wait()
        running.server.stop()
        assert await running.ended == 0
        assert load.cancelled


async def test_a_drain_lets_running_requests_end_and_refuses_new_ones(fresh: Any) -> None:
    fresh.engine.pause()
    client = fresh.openai()
    whole = asyncio.create_task(client.completions.create(model="fake", prompt="a"))
    stream = asyncio.create_task(collect(client, prompt="b"))
    await fresh.engine.until(lambda: len(fresh.engine.running) == 2)
    fresh.server.stop()
    async with fresh.http() as http:
        while (health := await http.get("/health")).status_code == 200:
            pass
        assert health.json() == {"status": "draining"}
        refused = await http.post("/v1/completions", json=BODY)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert refused.headers["connection"] == "close"
        assert "shutting down" in refused.json()["error"]["message"]
    assert not fresh.ended.done()
    fresh.engine.resume()
    assert (await whole).choices[0].text == "Hello!"
    assert await stream == "Hello!"
    assert await fresh.ended == 0
    assert fresh.engine.stopped


async def test_a_drain_ends_after_its_time(run_server: Any) -> None:
    async with run_server(drain_seconds=0.05) as running:
        running.engine.pause()
        call = asyncio.create_task(running.openai().completions.create(model="fake", prompt="a"))
        await running.engine.until(lambda: bool(running.engine.running))
        running.server.stop()
        with pytest.raises(openai.APIError):
            await call
        assert await running.ended == 0


async def test_an_engine_that_dies_in_a_drain_is_told_like_any_other(fresh: Any) -> None:
    fresh.engine.pause()
    call = asyncio.create_task(fresh.openai().completions.create(model="fake", prompt="a"))
    await fresh.engine.until(lambda: bool(fresh.engine.running))
    fresh.server.stop()
    async with fresh.http() as http:
        while (await http.get("/health")).json() != {"status": "draining"}:
            pass
    fresh.engine.die()
    with pytest.raises(openai.InternalServerError, match="the engine died: it was killed"):
        await call
    with pytest.raises(EngineDeadError, match="it was killed") as ended:
        await fresh.ended
    assert ended.value.kind.exit_code == 6


async def test_the_second_signal_ends_it_at_once(fresh: Any) -> None:
    fresh.engine.pause()
    call = asyncio.create_task(fresh.openai().completions.create(model="fake", prompt="a"))
    await fresh.engine.until(lambda: bool(fresh.engine.running))
    fresh.server.stop()
    fresh.server.stop()
    assert await fresh.ended == 130
    with pytest.raises(openai.APIError):
        await call


async def test_a_dead_engine_is_told_to_everyone_and_ends_the_server(fresh: Any) -> None:
    client = fresh.openai()
    stream = await client.completions.create(model="fake", prompt="b", stream=True)
    chunks = aiter(stream)
    await anext(chunks)
    fresh.engine.pause()
    whole = asyncio.create_task(client.completions.create(model="fake", prompt="a"))
    await fresh.engine.until(lambda: len(fresh.engine.running) == 2)
    fresh.engine.die()
    with pytest.raises(openai.APIError, match="the engine died"):
        [chunk async for chunk in chunks]
    with pytest.raises(openai.InternalServerError, match="the engine died: it was killed"):
        await whole
    with pytest.raises(EngineDeadError, match="it was killed") as ended:
        await fresh.ended
    assert ended.value.kind.exit_code == 6


async def test_with_a_dead_engine_the_server_is_neither_ready_nor_live(
    fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as it still answers requests in flight."""
    told = asyncio.Event()

    monkeypatch.setattr(fresh.engine, "generate", lambda request: _held(told))
    whole = asyncio.create_task(fresh.openai().completions.create(model="fake", prompt="a"))
    while not fresh.server.state.in_flight:
        await asyncio.sleep(0)
    async with fresh.http() as http:
        assert (await http.get("/live")).status_code == 200
        fresh.engine.die()
        answers = [await http.get(path) for path in ("/live", "/health")]
    failed = {"status": "failed", "reason": "engine-died"}
    assert [(a.status_code, a.json()) for a in answers] == [(503, failed)] * 2
    told.set()
    with pytest.raises(openai.InternalServerError, match="the engine died: it hung"):
        await whole
    with pytest.raises(EngineDeadError):
        await fresh.ended


async def _held(told: asyncio.Event) -> AsyncGenerator[RequestOutput, None]:
    await told.wait()
    if told.is_set():
        raise EngineDeadError("it hung")
    yield RequestOutput("none")


def test_a_taken_port_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}.*choose another --host or --port"):
            listen("127.0.0.1", port)


def test_an_address_of_nobody_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="choose another --host"):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (SourceError("no such\nmodel"), 3, "model-source: no such model"),
        (EngineDeadError("killed"), 6, "engine-died: killed"),
        (DeviceFailedError("the GPU is lost"), 8, "device-failed: the GPU is lost"),
    ],
)
def test_a_fatal_error_leaves_one_line_and_its_exit_code(
    error: Exception,
    code: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def load(*_given: Any) -> Any:
        raise error

    monkeypatch.setattr(server_module, "load_and_start", load)
    monkeypatch.setenv("PLIMSOLL_TERMINATION_LOG", str(tmp_path / "log"))
    assert main(["serve", "fake", "--port", "0"]) == code
    assert (tmp_path / "log").read_text() == line
    assert capsys.readouterr().err.splitlines()[-1:] == [f"plimsoll: {error}".splitlines()[-1]]


def test_an_error_that_nobody_foresaw_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def load(*_given: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.setattr(server_module, "load_and_start", load)
    config = ServerConfig(EngineConfig(model="m"), ("m",), port=0, termination_log=str(tmp_path / "log"))
    with pytest.raises(KeyError):
        server_module.serve(config)
    assert (tmp_path / "log").read_text() == "internal: 'a bug'"


async def test_a_client_that_leaves_in_the_middle_of_a_stream_ends_the_work(
    fresh: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fresh.engine.answer = b"x" * 3000
    async with fresh.openai() as client:
        stream = await client.chat.completions.create(model="fake", messages=HELLO, stream=True)
        await anext(aiter(stream))
        fresh.engine.pause()
        await stream.close()
    await fresh.engine.until(lambda: len(fresh.engine.aborted) == 1)
    fresh.server.stop()
    await fresh.ended
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert any(r.getMessage().endswith("generated, disconnect") for r in caplog.records)


async def collect(client: openai.AsyncOpenAI, prompt: str) -> str:
    stream = await client.completions.create(model="fake", prompt=prompt, stream=True)
    return "".join([chunk.choices[0].text async for chunk in stream])
