"""A standby process can become any engine; an image outlives its engines, however they end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from model_support.tiny import make_model, prompts, save_model

from plimsoll_runtime.driver.clients.async_client import AsyncEngine
from plimsoll_runtime.driver.process import child, control_socket
from plimsoll_runtime.driver.process.child import EngineChild
from plimsoll_runtime.driver.process.control_socket import KILL_SECONDS, StandbyDeadError
from plimsoll_runtime.driver.process.handshake import Grant
from plimsoll_runtime.driver.process.standby import ForkServer, StandbyProcess
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.errors import DeviceLostError, EngineDeadError, MemoryLimitError, SourceError, UsageError
from plimsoll_runtime.execution.memory.system import footprint
from plimsoll_runtime.weights.image import Image

FAKE = "fake_engine:build"


@pytest.fixture
async def cold() -> AsyncIterator[StandbyProcess]:
    made = StandbyProcess.spawn()
    yield made
    made.close()


async def tokens(engine: AsyncEngine, seed: int) -> list[int]:
    [prompt] = prompts((30,), seed=seed)
    context = RequestContext(SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True), seed=0)
    return [token async for out in engine.generate(AddRequest("r", prompt, context)) for token in out.token_ids]


@pytest.mark.long
async def test_models_sleep_in_images_and_wake_in_processes_that_stand_by(server: ForkServer, tmp_path: Path) -> None:
    """Two models run at the same time; one engine is stopped, the other killed; both wake with the same outputs."""
    images, grants, configs = [], [], []
    said: list[list[int]] = []
    for number, family in enumerate(("LlamaConfig", "Gemma3TextConfig")):
        folder = tmp_path / family
        save_model(make_model(family, {"head_dim": 16}, seed=number), folder)
        configs.append(EngineConfig(model=str(folder), dtype="float32", threads=1, max_model_len=128))
    standbys = [await server.fork() for _ in configs]
    engines = []
    for standby, config in zip(standbys, configs, strict=True):
        needs = await standby.needs(config)
        before = footprint(standby.pid).anonymous
        image = Image.create(needs.image, config.model)
        grant = Grant(weights=needs.image + needs.private, workspace=needs.workspace, kv=needs.kv_least)
        engine = await AsyncEngine.start(config, standby=standby, image=image, grant=grant)
        assert engine.pid == standby.pid
        assert not standby.alive
        assert engine.info.image_bytes <= needs.image
        assert engine.info.workspace_bytes == needs.workspace
        assert engine.info.kv_bytes == needs.kv_least
        used = footprint(engine.pid)
        assert used.shared >= engine.info.image_bytes - 2**12
        private = used.anonymous - before
        assert private <= needs.private + needs.workspace + needs.kv_least + 2**25, "nothing that no ledger counts"
        images.append(image)
        grants.append(grant)
        engines.append(engine)
        said.append(await tokens(engine, seed=len(said)))
    assert [await tokens(engine, seed=number) for number, engine in enumerate(engines)] == said, "both at once"
    await engines[0].stop()
    os.kill(engines[1].pid, signal.SIGKILL)
    await engines[1].wait_dead()
    await engines[1].stop()
    for number, (config, image, grant) in enumerate(zip(configs, images, grants, strict=True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HF_HUB_OFFLINE", "1")
            woken = await AsyncEngine.start(config, standby=await server.fork(), image=image, grant=grant)
        assert await tokens(woken, seed=number) == said[number]
        await woken.stop()
        image.close()


@pytest.mark.long
async def test_a_process_imports_what_builds_its_engine_before_it_is_told_what_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = tmp_path / "imported"
    (tmp_path / "builds_nothing.py").write_text(f"open({str(imported)!r}, 'x').close()\ndef build(): ...\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with contextlib.closing(StandbyProcess.spawn(factory="builds_nothing:build")) as standby:
        with pytest.raises(SourceError, match="does not exist"):
            await standby.needs(EngineConfig(model=str(tmp_path / "none")))
        assert imported.exists(), "orders are carried out one after the other"


@pytest.mark.long
async def test_what_cannot_be_imported_is_told_by_the_start(tmp_path: Path) -> None:
    with contextlib.closing(StandbyProcess.spawn(factory="not_there:build")) as standby:
        with pytest.raises(SourceError, match="does not exist"):
            await standby.needs(EngineConfig(model=str(tmp_path / "none")))
        with pytest.raises(EngineDeadError, match="No module named 'not_there'"):
            await AsyncEngine.start(EngineConfig(model="m"), factory="not_there:build", standby=standby)


@pytest.mark.long
async def test_what_cannot_be_measured_is_refused_and_the_process_stands_by(
    cold: StandbyProcess, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        await cold.needs(EngineConfig(model=str(tmp_path / "none")))
    save_model(make_model("LlamaConfig", {"head_dim": 16}), tmp_path)
    config = EngineConfig(model=str(tmp_path), max_model_len=100)
    with pytest.raises(MemoryLimitError, match="the 10 bytes that are always granted"):
        await cold.needs(config, kv=10)
    with pytest.raises(UsageError, match="exceeds the model's limit"):
        await cold.needs(EngineConfig(model=str(tmp_path), max_model_len=1000))
    assert (await cold.needs(config)).max_model_len == 100
    assert cold.alive
    os.kill(cold.pid, signal.SIGKILL)
    with pytest.raises(StandbyDeadError, match=f"process {cold.pid} was killed by signal 9; the kernel"):
        await cold.needs(config)
    assert not cold.alive


@pytest.mark.long
async def test_a_model_is_measured_for_the_device_that_it_is_to_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the GPU is gone, the model is not measured for the CPU instead."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    save_model(make_model("LlamaConfig", {"head_dim": 16}), tmp_path)
    with contextlib.closing(StandbyProcess.spawn()) as standby:
        with pytest.raises(DeviceLostError, match="torch finds none"):
            await standby.needs(EngineConfig(model=str(tmp_path), device="cuda"))
        assert (await standby.needs(EngineConfig(model=str(tmp_path), device="cpu"))).image


async def test_one_process_becomes_one_engine(cold: StandbyProcess) -> None:
    engine = await AsyncEngine.start(EngineConfig(model="fine"), factory=FAKE, standby=cold)
    assert engine.pid == cold.pid
    with pytest.raises(UsageError, match="is already an engine; spawn another"):
        await AsyncEngine.start(EngineConfig(model="fine"), factory=FAKE, standby=cold)
    cold.close()
    assert engine.alive, "it belongs to the engine"
    await engine.stop()


async def test_one_that_was_closed_is_gone(cold: StandbyProcess) -> None:
    process = psutil.Process(cold.pid)
    cold.close()
    assert not cold.alive
    assert not process.is_running()
    cold.close()
    with pytest.raises(UsageError, match="was closed"):
        await AsyncEngine.start(EngineConfig(model="fine"), factory=FAKE, standby=cold)


async def test_one_that_is_not_gone_at_once_is_reaped_without_holding_up_the_loop(
    cold: StandbyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[tuple[str, float | None]] = []
    reaped = threading.Event()
    wait = cold.process.wait

    def stuck(timeout: float | None = None) -> int:
        waits.append((threading.current_thread().name, timeout))
        if timeout is not None:
            raise subprocess.TimeoutExpired("it", timeout)
        code = wait()
        reaped.set()
        return code

    monkeypatch.setattr(cold.process, "wait", stuck)
    cold.close()
    assert await asyncio.to_thread(reaped.wait, 60)
    assert waits[0] == ("MainThread", control_socket.AT_ONCE_SECONDS)
    assert waits[1:] == [("plimsoll-standby-end", KILL_SECONDS), ("plimsoll-standby-end", None)]


@pytest.mark.long
async def test_one_that_has_died_starts_nothing_and_leaves_nothing(cold: StandbyProcess) -> None:
    os.kill(cold.pid, signal.SIGKILL)
    await asyncio.to_thread(cold.process.wait)
    gc.collect()  # frees objects of earlier tests
    before = open_descriptors()
    with pytest.raises(StandbyDeadError, match="was killed by signal 9"):
        await AsyncEngine.start(EngineConfig(model="fine"), factory=FAKE, standby=cold)
    assert open_descriptors() == before - 2, "its socket and its page are given back"


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (fcntl, "flock"),
        (tempfile, "mkdtemp"),
        (EngineChild, "_bind"),
        (os, "pipe"),
        (child, "Pulse"),
        (threading, "Thread"),
    ],
    ids=["lock", "folder", "sockets", "pipe", "page", "thread"],
)
async def test_a_start_that_fails_here_leaves_neither_process_nor_descriptor(
    cold: StandbyProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, owner: Any, name: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gc.collect()  # frees objects of earlier tests
    before = open_descriptors()
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, fails)
        with pytest.raises(OSError, match="Too many open files"):
            EngineChild(EngineConfig(model="fine"), FAKE, standby=cold)
    assert cold.process.returncode is not None, "it was killed and reaped"
    assert open_descriptors() == before - 2, "its socket and its page are given back, and nothing stays open"
    assert names_in(tmp_path) == []


async def test_one_that_dies_before_it_reads_what_to_be_is_no_dead_engine(cold: StandbyProcess) -> None:
    os.kill(cold.pid, signal.SIGSTOP)
    starting = asyncio.create_task(AsyncEngine.start(EngineConfig(model="fine"), factory=FAKE, standby=cold))
    await asyncio.sleep(0)
    assert not cold.alive, "it was told"
    os.kill(cold.pid, signal.SIGKILL)
    with pytest.raises(StandbyDeadError, match=f"the standby process {cold.pid} was killed by signal 9"):
        await starting


async def test_a_start_that_fails_uses_it_up(cold: StandbyProcess) -> None:
    with pytest.raises(SourceError, match="no such model"):
        await AsyncEngine.start(EngineConfig(model="source"), factory=FAKE, standby=cold)
    assert not psutil.pid_exists(cold.pid)


def test_who_supervises_engines_needs_no_torch() -> None:
    modules = ("clients.async_client", "process.standby", "process.handshake")
    imports = ", ".join(f"plimsoll_runtime.driver.{module}" for module in modules)
    code = f"import sys, {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]
