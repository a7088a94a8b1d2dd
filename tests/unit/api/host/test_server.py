"""A host's life: ready without a model, drained in order, never open to other machines by mistake."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from residency_support.engines import FakeEngines

from plimsoll_runtime.api.host import server as run_module
from plimsoll_runtime.api.host.config import HostConfig
from plimsoll_runtime.api.host.server import HostServer, make_guard
from plimsoll_runtime.api.server.listener import listen
from plimsoll_runtime.cli.main import main
from plimsoll_runtime.errors import DeviceLostError, UsageError
from plimsoll_runtime.residency.spec import ModelName, ModelSpec


async def test_a_host_is_ready_without_a_model(hosting: Any) -> None:
    async with hosting.http() as http:
        assert (await http.get("/health")).json() == {"status": "ready"}
        assert (await http.get("/live")).status_code == 200
        assert (await http.get("/v1/models")).json() == {"object": "list", "data": []}
        model = hosting.host.add("team/m")
        hosting.host.rouse(model)
        model.engine.die()
        assert (await http.get("/live")).status_code == 200
        assert (await http.get("/health")).status_code == 200


async def test_models_are_placed_at_the_start(run_host: Any) -> None:
    name = ModelName("default", "m")
    async with run_host(models=((name, ModelSpec(revision="1", source="/x")),)) as hosting:
        assert list(hosting.host.models) == [name]
        assert [(content[0], content[3]) for content in hosting.host.seen] == [("place", "OnDisk")]


async def test_requests_end_before_engines_do(run_host: Any) -> None:
    async with run_host() as hosting:
        model = hosting.host.add("team/m")
        hosting.host.rouse(model)
        model.engine.pause()
        async with hosting.http() as http, hosting.http() as other:
            asked = asyncio.create_task(http.post("/v1/completions", json={"model": "m", "prompt": "a"}))
            await model.engine.until(lambda: bool(model.engine.running))
            hosting.server.stop()
            while (refused := await other.post("/v1/completions", json={"model": "m", "prompt": "a"})).is_success:
                pass
            assert (refused.status_code, "shutting down" in refused.text) == (503, True)
            async with hosting.api() as api:
                assert (await api.get("/report")).json()["models"][0]["active"] == 1
            assert not hosting.host.closed
            model.engine.resume()
            assert (await asked).json()["choices"][0]["text"] == "Hello!"
        assert await hosting.ended == 0
        assert hosting.host.closed


async def test_who_waits_for_a_model_is_told_when_the_time_to_drain_is_over(run_host: Any) -> None:
    async with run_host(drain_seconds=0.05) as hosting:
        model = hosting.host.add("team/m")
        async with hosting.http() as http:
            asked = asyncio.create_task(http.post("/v1/completions", json={"model": "m", "prompt": "a"}))
            await hosting.host.until(lambda: model.waiting == 1)
            hosting.server.stop()
            answer = await asked
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "host_closing")
        assert await hosting.ended == 0


async def test_a_second_signal_ends_it_at_once(run_host: Any) -> None:
    async with run_host() as hosting:
        model = hosting.host.add("team/m")
        async with hosting.http() as http:
            asked = asyncio.create_task(http.post("/v1/completions", json={"model": "m", "prompt": "a"}))
            await hosting.host.until(lambda: model.waiting == 1)
            hosting.server.stop()
            hosting.server.stop()
            assert await hosting.ended == 130
            await asyncio.gather(asked, return_exceptions=True)
        assert hosting.host.closed


async def test_a_host_whose_device_is_lost_is_unready_tells_who_is_served_and_ends(run_host: Any) -> None:
    """Like a server whose engine has died: requests in flight may end, then the process ends with the error."""
    async with run_host() as hosting:
        model = hosting.host.add("team/m")
        hosting.host.rouse(model)
        model.engine.pause()
        async with hosting.http() as http, hosting.http() as other:
            asked = asyncio.create_task(http.post("/v1/completions", json={"model": "m", "prompt": "a"}))
            await model.engine.until(lambda: bool(model.engine.running))
            hosting.host.lose(DeviceLostError("the GPU is lost"))
            while (health := await other.get("/health")).is_success:
                pass
            failed = {"status": "failed", "reason": "device-failed"}
            assert (health.status_code, health.json()) == (503, failed)
            assert (await other.get("/live")).status_code == 503
            refused = await other.post("/v1/completions", json={"model": "m", "prompt": "a"})
            assert (refused.status_code, "The device has failed" in refused.text) == (503, True)
            assert not hosting.host.closed
            model.engine.resume()
            assert (await asked).json()["choices"][0]["text"] == "Hello!"
        with pytest.raises(DeviceLostError, match="the GPU is lost"):
            await hosting.ended
        assert hosting.host.closed


async def test_a_device_that_is_lost_while_the_host_drains_is_why_it_ended(run_host: Any) -> None:
    async with run_host() as hosting:
        model = hosting.host.add("team/m")
        hosting.host.rouse(model)
        model.engine.pause()
        async with hosting.http() as http:
            asked = asyncio.create_task(http.post("/v1/completions", json={"model": "m", "prompt": "a"}))
            await model.engine.until(lambda: bool(model.engine.running))
            hosting.server.stop()
            hosting.host.lose(DeviceLostError("the GPU is lost"))
            model.engine.resume()
            await asked
        with pytest.raises(DeviceLostError):
            await hosting.ended


def test_a_lost_device_is_the_hosts_exit_code_and_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = FakeEngines()
    engines.look_errors.append(DeviceLostError("CUDA error: GPU is\nlost"))
    monkeypatch.setattr(run_module, "Processes", lambda **_: engines)
    monkeypatch.setenv("PLIMSOLL_TERMINATION_LOG", str(tmp_path / "log"))
    assert main(["host", "--port", "0", "--host-port", "0"]) == 8
    assert (tmp_path / "log").read_text() == "device-failed: CUDA error: GPU is lost"
    assert "plimsoll: CUDA error: GPU is" in capsys.readouterr().err


def test_without_tokens_it_starts_on_loopback_only(tmp_path: Path) -> None:
    (tmp_path / "full").write_text("t")
    for address, is_loopback in (("127.0.0.1", True), ("0.0.0.0", False), ("localhost", True)):
        with listen(address, 0) as listener:
            assert make_guard(HostConfig(host_token_file=tmp_path / "full"), listener).is_open is False
            if is_loopback:
                assert make_guard(HostConfig(), listener).is_open
            else:
                with pytest.raises(
                    UsageError, match=r"open to every client that reaches 0\.0\.0\.0; set --host-token-file"
                ):
                    make_guard(HostConfig(), listener)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_loopback_of_ipv6_counts_as_such() -> None:
    try:
        listener = listen("::1", 0)
    except UsageError:
        pytest.skip("no IPv6 here")
    with listener:
        assert make_guard(HostConfig(), listener).is_open


async def test_without_tokens_nobody_is_asked_for_one(run_host: Any) -> None:
    async with run_host(tokens=False) as hosting, httpx.AsyncClient() as http:
        assert (await http.get(f"{hosting.host_url}/host/v1/report")).status_code == 200


async def test_a_device_that_cannot_be_measured_ends_the_start(host: Any) -> None:
    async def broken() -> None:
        raise UsageError("--line 1TiB is more than the device has")

    host.start = broken
    listeners = (listen("127.0.0.1", 0), listen("127.0.0.1", 0))
    with pytest.raises(UsageError, match="--line 1TiB"):
        await HostServer(HostConfig(), listeners, host).run()
    assert host.closed
