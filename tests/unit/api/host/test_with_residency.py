"""Both APIs in front of the real host with fake engines: five models on a device that holds two."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from residency_support.engines import Behaviour, FakeEngines

from plimsoll_runtime.api.host.config import HostConfig
from plimsoll_runtime.api.host.server import HostServer
from plimsoll_runtime.api.server.listener import listen
from plimsoll_runtime.errors import DeviceLostError, EngineDeadError
from plimsoll_runtime.residency.host import Host
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.spec import ModelName, ModelSpec

NAMES = [ModelName("team", f"m{index}") for index in range(5)]
QUICK = {"find_seconds": 0.0, "load_seconds": 0.01, "wake_seconds": 0.01, "stop_seconds": 0.01}


@pytest.fixture
async def served(make_engine: Callable[[], Any], model_folder: Path) -> AsyncIterator[tuple[FakeEngines, str, str]]:
    """The engines, and the addresses of both APIs."""

    def engine_of(name: ModelName, _spec: ModelSpec) -> Any:
        engine = make_engine()
        engine.answer = f"of {name.name}".encode()
        return engine

    engines = FakeEngines(capacity=10, engine_of=engine_of)
    for name in NAMES:
        engines.behaviours[name] = Behaviour(**QUICK)  # type: ignore[arg-type]
    settings = Settings(line=0.9, minimum_residency=0.0, service_slice=0.0, patience=0.0, check_seconds=0.05)
    models = tuple((name, ModelSpec(revision="1", source=str(model_folder))) for name in NAMES)
    listeners = (listen("127.0.0.1", 0), listen("127.0.0.1", 0))
    urls = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    server = HostServer(HostConfig(models=models, keep_alive=0.05), listeners, Host(engines, settings))
    running = asyncio.create_task(server.run())
    async with httpx.AsyncClient() as http:
        while (await http.get(f"{urls[0]}/health")).status_code != 200:
            assert not running.done(), running
    yield engines, *urls  # type: ignore[misc]
    server.stop()
    assert await running == 0
    assert not engines.alive
    assert not engines.images


async def test_all_of_five_models_answer_where_two_fit(served: tuple[FakeEngines, str, str]) -> None:
    engines, url, host_url = served
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=120) as client:

        async def ask(name: ModelName) -> str:
            answer = await client.completions.create(model=name.name, prompt="Hi")
            return str(answer.choices[0].text)

        asked = [NAMES[index % 5] for index in range(40)]
        assert await asyncio.gather(*map(ask, asked)) == [f"of {name.name}" for name in asked]
        assert len(engines.alive) <= 2
    async with httpx.AsyncClient(base_url=f"{host_url}/host/v1") as api:
        report = (await api.get("/report")).json()
        assert {(m["name"], m["active"], m["waiting"]) for m in report["models"]} == {(n.name, 0, 0) for n in NAMES}
        assert all(m["loads"] + m["wakes"] >= 1 for m in report["models"])
        assert {d["action"] for d in report["decisions"]} & {"Evicted", "Asleep"}
        assert all(decision["why"] for decision in report["decisions"])


async def test_the_host_api_moves_models(served: tuple[FakeEngines, str, str]) -> None:
    _engines, url, host_url = served
    async with httpx.AsyncClient(base_url=f"{host_url}/host/v1/models/team", timeout=120) as api:

        async def settled(method: str, path: str, operation: str, **body: Any) -> Any:
            async with asyncio.timeout(60):
                while (
                    answer := await api.request(method, path, json={"operation": operation, **body})
                ).status_code == 202:
                    await asyncio.sleep(0)
            assert answer.status_code == 200, answer.text
            return answer.json()

        assert (await settled("POST", "/m3/wake", "a"))["state"] == "Resident"
        assert (await settled("POST", "/m3/pin", "b", pinned=True))["pinned"] is True
        assert (await settled("POST", "/m3/pin", "c", pinned=False, weight=2.0))["weight"] == 2.0
        assert (await settled("POST", "/m3/sleep", "d", level="OnDisk"))["state"] == "OnDisk"
        assert await settled("DELETE", "/m3", "e") is None
        assert await settled("DELETE", "/m3", "e") is None
        missing = await api.post("/m3/wake", json={"operation": "f"})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_placed")
        wrong = await api.put(
            "/m4", json={"operation": "g", "level": "InHost", "spec": {"revision": "1", "source": ""}}
        )
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "usage")
        async with httpx.AsyncClient(base_url=url) as http:
            listed = (await http.get("/v1/models")).json()["data"]
            assert [model["id"] for model in listed] == ["m0", "m1", "m2", "m4"]


async def test_a_lost_device_ends_what_runs_and_what_waits_with_its_reason(
    make_engine: Callable[[], Any], model_folder: Path
) -> None:
    """The stream of the failed engine, one of an engine that has stopped writing, and a request that waits."""
    made: dict[str, Any] = {}

    def engine_of(name: ModelName, _spec: ModelSpec) -> Any:
        made[name.name] = make_engine()
        made[name.name].pause()
        return made[name.name]

    engines = FakeEngines(capacity=10, engine_of=engine_of)
    for name in NAMES:
        engines.behaviours[name] = Behaviour(**QUICK)  # type: ignore[arg-type]
    models = tuple((name, ModelSpec(revision="1", source=str(model_folder))) for name in NAMES)
    listeners = (listen("127.0.0.1", 0), listen("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listeners[0].getsockname()[1]}"
    settings = Settings(line=0.9, check_seconds=0.05)
    host = Host(engines, settings)
    config = HostConfig(models=models, drain_seconds=0.3)
    running = asyncio.create_task(HostServer(config, listeners, host).run())
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        while (await http.get("/health")).status_code != 200:
            assert not running.done(), running

        async def ask(name: str) -> tuple[int, str, str]:
            answer = await http.post("/v1/completions", json={"model": name, "prompt": "Hi"})
            return answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["message"]

        served = [asyncio.create_task(ask(name)) for name in ("m0", "m1")]
        while not all(name in made and made[name].running for name in ("m0", "m1")):
            await asyncio.sleep(0)
        waiting = asyncio.create_task(ask("m2"))
        while not any(model.waiting for model in host.report().models):
            await asyncio.sleep(0)
        [found] = [engine for engine in engines.alive if engine.name.name == "m0"]
        found.die(DeviceLostError("the GPU is lost"))
        told = "the device has failed and the server is stopping: the GPU is lost"
        assert await waiting == (503, "device_lost", f"T{told[1:]}.")
        assert [await answer for answer in served] == [(500, "engine_died", "the engine died: the GPU is lost")] * 2
        with pytest.raises(DeviceLostError):
            await running
    assert not engines.alive


@pytest.mark.long
async def test_a_dead_engine_takes_no_other_with_it(served: tuple[FakeEngines, str, str]) -> None:
    engines, url, _ = served
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=120) as client:
        await client.completions.create(model="m0", prompt="Hi")
        doomed = next(engine for engine in engines.alive if engine.name.name == "m0")
        doomed.die(EngineDeadError("it was killed"))
        for name in ("m1", "m0"):
            answer = await client.completions.create(model=name, prompt="Hi")
            assert answer.choices[0].text == f"of {name}"
        assert doomed not in engines.alive
