"""Real engines of a host: two models take turns in memory for one; one is killed, and the other keeps serving."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
import torch
from model_support.tiny import make_model, prompts, save_model
from residency_support.failing import FACTORY, FAULT, LOST

from plimsoll_runtime.driver.clients.async_client import AsyncEngine
from plimsoll_runtime.driver.process.handshake import Needs
from plimsoll_runtime.driver.process.standby import ForkServer, StandbyProcess
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.errors import DeviceFailedError, DeviceLostError, EngineDeadError, UsageError
from plimsoll_runtime.execution.device import gpus
from plimsoll_runtime.execution.memory import kv_budget
from plimsoll_runtime.residency.engines import processes as module
from plimsoll_runtime.residency.engines import standby_pool as spare_module
from plimsoll_runtime.residency.engines.base import Device, Resident
from plimsoll_runtime.residency.engines.processes import Processes
from plimsoll_runtime.residency.engines.standby_pool import StandbyPool
from plimsoll_runtime.residency.errors import Refused
from plimsoll_runtime.residency.host import Host
from plimsoll_runtime.residency.ledger import Grant
from plimsoll_runtime.residency.report import ModelReport
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.spec import ModelName, ModelSpec
from plimsoll_runtime.residency.states import Level

A, B = ModelName("team", "a"), ModelName("team", "b")
SLEEPERS = 64 * 2**20
EARLIER: frozenset[psutil.Process] = frozenset()


@pytest.fixture(autouse=True)
def _nobody_else_takes_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent other processes that use up memory from stopping these hosts' loads."""
    monkeypatch.setattr(module, "read_stalls", lambda: None)
    monkeypatch.setattr(module, "host_memory_left", lambda: 2**36)


def spec(folder: Path, seed: int, sequences: int = 4) -> ModelSpec:
    if not folder.exists():
        save_model(make_model("LlamaConfig", {"head_dim": 16}, seed=seed), folder)
    runtime = {"dtype": "float32", "threads": 1, "maxModelLen": 128, "maxSequences": sequences, "maxBatchTokens": 64}
    return ModelSpec(revision="1", source=str(folder), runtime=runtime)


async def say(resident: Resident, tokens: int = 8, first: int = 1) -> list[int]:
    """Return the model's output for a prompt that begins with token `first`."""
    prompt = [first, *prompts((20,))[0][1:]]
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    request = AddRequest(os.urandom(4).hex(), prompt, RequestContext(params, seed=0))
    return [token async for out in resident.engine.generate(request) for token in out.token_ids]


async def ask(host: Host, name: ModelName) -> list[int]:
    async with host.lease(name) as resident:
        return await say(resident)


def entry(host: Host, name: ModelName) -> ModelReport:
    return next(m for m in host.report().models if (m.namespace, m.name) == name)


@pytest.fixture(autouse=True)
def _earlier_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember which child processes there are already. A test process adopts what killed servers leave behind."""
    monkeypatch.setattr(sys.modules[__name__], "EARLIER", frozenset(psutil.Process().children()))


def engines_left() -> list[psutil.Process]:
    """Return the engine processes that this test has started, including the standby process."""
    found = []
    for child in frozenset(psutil.Process().children()) - EARLIER:
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if child.name() == "plimsoll-engine":
                found.append(child)
    return found


async def until(host: Host, name: ModelName, *states: str) -> None:
    report = host.report()
    while entry(host, name).state not in states:
        report = await host.changed(report.sequence, 60)


async def start(engines: Processes, specs: dict[ModelName, ModelSpec], **settings: float) -> Host:
    host = Host(engines, Settings(line=1.0, sleepers=SLEEPERS, check_seconds=0.5, **settings))  # type: ignore[arg-type]
    await host.start()
    for name, model in specs.items():
        host.place(name, model, Level.ON_DISK, f"place {name}")
        outcome = await host.settled(f"place {name}", 60)
        assert outcome.done
        assert outcome.error is None
    return host


async def limit_for(model: ModelSpec, models: float) -> int:
    """Return a memory limit that holds `models` models."""
    engines = Processes()
    await engines.open(1.0, SLEEPERS)
    try:
        found = await engines.find(A, model)
        return engines.look().reserved + SLEEPERS + int(models * found.sizes.least)
    finally:
        await engines.close()


@pytest.mark.long
async def test_two_models_that_do_not_fit_together_take_turns(tmp_path: Path) -> None:
    specs = {A: spec(tmp_path / "a", 1), B: spec(tmp_path / "b", 2)}
    engines = Processes(await limit_for(specs[A], 1.6))
    host = await start(engines, specs, minimum_residency=0.0, service_slice=0.0, patience=0.0)
    try:
        said = {name: await ask(host, name) for name in (A, B)}
        assert said[A] != said[B]
        answers = await asyncio.gather(*(ask(host, name) for name in (A, B, A, B)))
        assert answers == [said[A], said[B], said[A], said[B]]
        host.check_integrity()
        awake = [model for model in host.report().models if model.state == "Resident"]
        assert len(awake) == 1
        # It woke from its image: the files were read once.
        assert all(entry(host, name).loads == 1 for name in (A, B))
        assert sum(entry(host, name).wakes for name in (A, B)) >= 1
        device = host.report().device
        assert device.used <= device.line
    finally:
        await host.close()
    assert not engines_left()


@pytest.mark.long
async def test_a_kv_cache_gives_way_before_its_model_must(tmp_path: Path) -> None:
    """The first model has half of the free memory; the second needs some of it, and both serve."""
    specs = {A: spec(tmp_path / "a", 1, sequences=8000), B: spec(tmp_path / "b", 2, sequences=8000)}
    host = await start(Processes(await limit_for(specs[A], 2.3)), specs)
    try:
        async with host.lease(A) as resident:
            before = entry(host, A).kv
            said = await say(resident)
            await ask(host, B)
            assert entry(host, A).kv < before
            assert cast(AsyncEngine, resident.engine).kv_bytes == entry(host, A).kv
            assert await say(resident) == said
        assert {entry(host, A).state, entry(host, B).state} == {"Resident"}
        assert host.counters.resizes >= 1
        assert host.counters.evictions == 0
        host.check_integrity()
    finally:
        await host.close()


@pytest.mark.long
async def test_a_kill_fails_its_own_requests_and_nobody_elses(tmp_path: Path) -> None:
    specs = {A: spec(tmp_path / "a", 1), B: spec(tmp_path / "b", 2)}
    engines = Processes(await limit_for(specs[A], 2.6))
    host = await start(engines, specs, first_back_off=0.5)
    try:
        async with host.lease(A) as doomed, host.lease(B) as other:
            said = await say(doomed)
            streaming = asyncio.create_task(say(other, tokens=60))
            os.kill(cast(AsyncEngine, doomed.engine).pid, signal.SIGKILL)
            await doomed.engine.wait_dead()
            with pytest.raises(EngineDeadError, match="signal 9"):
                await say(doomed)
            assert len(await streaming) == 60
        await until(host, A, "InHost")
        assert "signal 9" in str(entry(host, A).error)
        assert entry(host, B).state == "Resident"
        assert await ask(host, A) == said
        assert (entry(host, A).loads, entry(host, A).wakes) == (1, 1)
        assert host.counters.deaths == 1
    finally:
        await host.close()
    assert not engines_left()


@pytest.mark.long
async def test_a_kernels_fault_ends_its_engine_and_a_lost_device_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    start_failing = partial(AsyncEngine.start, factory=FACTORY)
    monkeypatch.setattr(spare_module, "AsyncEngine", SimpleNamespace(start=start_failing))
    specs = {A: spec(tmp_path / "a", 1), B: spec(tmp_path / "b", 2)}
    host = await start(Processes(await limit_for(specs[A], 2.6)), specs, first_back_off=0.5)
    try:
        async with host.lease(A) as doomed, host.lease(B) as other:
            with pytest.raises(DeviceFailedError, match="an illegal memory access was encountered"):
                await say(doomed, first=FAULT)
            assert len(await say(other)) == 8
        await until(host, A, "InHost")
        assert len(await ask(host, A)) == 8
        assert host.loss is None
        async with host.lease(A) as doomed, host.lease(B) as other:
            with pytest.raises(DeviceLostError, match=r"GPU is lost.*no longer answers"):
                await say(doomed, first=LOST)
            async with asyncio.timeout(60):
                await host.lost()
            assert len(await say(other)) == 8
        with pytest.raises(Refused, match="GPU is lost"):
            await ask(host, B)
    finally:
        await host.close()
    assert not engines_left()


@pytest.mark.parametrize("phrase", ["GPU is lost", "unspecified launch failure", "unknown error"])
def test_a_device_that_cannot_be_looked_at_any_more_is_lost(phrase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error cannot come from a kernel, because this process launches none."""
    error: list[Exception] = [RuntimeError("NVML: not supported"), RuntimeError(f"CUDA error: {phrase}")]

    def free(device: torch.device) -> int:
        raise error.pop()

    monkeypatch.setattr(kv_budget, "free_memory", free)
    engines = Processes()
    engines._accelerated = True
    with pytest.raises(DeviceLostError, match=f"CUDA error: {phrase}"):
        engines.look()
    with pytest.raises(RuntimeError, match="not supported"):
        engines.look()


NEEDS = Needs(image=100, private=10, workspace=20, block_bytes=1, kv_least=5, kv_most=50, max_model_len=128, overhead=0)


class FakeSpare:
    """A fake standby pool that records the configs of measurements and starts."""

    def __init__(self) -> None:
        self.told: list[EngineConfig] = []

    async def footprints(self) -> tuple[int, int]:
        return 2**20, 2**20

    async def needs(self, config: EngineConfig, kv: int | None) -> Needs:
        self.told.append(config)
        return NEEDS

    async def engine(self, config: EngineConfig, image: object, grant: object) -> object:
        self.told.append(config)
        info = SimpleNamespace(workspace_bytes=20, overhead_bytes=0, weight_bytes=110)
        return SimpleNamespace(info=info, kv_bytes=5)


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulate a GPU of 2 GiB with a driver."""
    memory_of = {"get_memory_info": lambda device: (2**30, 2**31), "empty_cache": lambda: None}
    for name, made in memory_of.items():
        monkeypatch.setattr(torch.accelerator, name, made)
    monkeypatch.setattr(gpus, "device_name", lambda device: "a GPU")
    monkeypatch.setattr(gpus, "log_findings", lambda: ("a finding",))
    monkeypatch.setattr(module, "ACCELERATORS", (tmp_path / "another", tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


async def opened(wanted: str) -> tuple[Processes, FakeSpare, Device]:
    engines, spare = Processes(device=wanted), FakeSpare()
    engines._spare = cast(StandbyPool, spare)
    return engines, spare, await engines.open(0.9, 0)


@pytest.mark.parametrize(
    ("wanted", "driver", "seen", "device"),
    [
        ("auto", True, True, "cuda"),
        ("auto", True, False, "cpu"),
        ("auto", False, True, "cpu"),
        ("cuda", True, True, "cuda"),
        ("cuda", False, True, "cuda"),
        ("cpu", True, True, "cpu"),
    ],
    ids=["found", "not-for-torch", "no-driver", "wanted", "wanted-unasked", "unwanted"],
)
@pytest.mark.usefixtures("_gpu")
async def test_a_host_and_its_engines_agree_on_the_device(
    wanted: str, driver: bool, seen: bool, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host decides the device, and its engines use that one, whatever they would find themselves."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen)
    if not driver:
        monkeypatch.setattr(module, "ACCELERATORS", ())
    engines, spare, found = await opened(wanted)
    assert (found.kind, found.shared) == (device, device == "cpu")
    assert found.findings == (("a finding",) if device == "cuda" or not seen else ())
    model = spec(tmp_path / "a", 1)
    at = await engines.find(A, model)
    await engines.start(A, model, at, None, Grant(at.sizes.weights, at.sizes.workspace, at.sizes.kv_minimum))
    assert [config.device for config in spare.told] == [device, device]
    assert (engines.look().reserved == 0) == (device == "cuda")


@pytest.mark.usefixtures("_gpu")
async def test_a_gpu_that_nobody_wants_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("a driver is asked"))
    await opened("cpu")


@pytest.mark.usefixtures("_gpu")
async def test_that_no_gpu_is_used_though_there_is_a_driver_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    await opened("auto")
    assert "a GPU driver is installed but torch finds no GPU; models run on the CPU" in caplog.text


@pytest.mark.usefixtures("_gpu")
async def test_a_host_that_must_have_a_gpu_and_finds_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceLostError, match="torch finds none: "):
        await opened("cuda")


@pytest.mark.usefixtures("_gpu")
async def test_what_there_is_to_say_of_the_device_is_told_when_a_host_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for torch and the driver, and no other process."""
    _, _, device = await opened("auto")
    assert (device.kind, device.name, device.capacity, device.findings) == ("cuda", "a GPU", 2**31, ("a finding",))

    def fail() -> tuple[str, ...]:
        raise RuntimeError("CUDA error: GPU is lost")

    monkeypatch.setattr(gpus, "log_findings", fail)
    with pytest.raises(DeviceLostError, match="GPU is lost"):
        await opened("auto")


@pytest.mark.long
async def test_a_wake_goes_on_though_the_process_that_was_to_be_its_engine_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First while it stands by; then its replacement, before that is ready."""
    host = await start(Processes(), {A: spec(tmp_path / "a", 1)})
    fork, made = ForkServer.fork, list[StandbyProcess]()

    async def doomed(server: ForkServer) -> StandbyProcess:
        made.append(await fork(server))
        if len(made) == 1:
            os.kill(made[0].pid, signal.SIGKILL)
        return made[-1]

    monkeypatch.setattr(ForkServer, "fork", doomed)
    try:
        [standby] = engines_left()
        standby.kill()
        assert len(await ask(host, A)) == 8
        assert [each.alive for each in made[:2]] == [False, False], "killed, and an engine"
        assert entry(host, A).error is None
        assert host.counters.failures == 0
    finally:
        await host.close()
    assert not engines_left()


@pytest.mark.long
async def test_files_that_are_not_there_and_a_grant_that_is_too_small(tmp_path: Path) -> None:
    engines = Processes()
    host = await start(engines, {})
    try:
        host.place(A, ModelSpec(revision="1", source=str(tmp_path / "nothing")), Level.RESIDENT, "one")
        outcome = await host.settled("one", 60)
        assert "does not exist" in str(outcome.error)
        good = spec(tmp_path / "b", 2)
        found = await engines.find(B, good)
        sizes = found.sizes
        with pytest.raises(Exception, match="were granted"):
            await engines.start(B, good, found, None, Grant(1, sizes.workspace, sizes.kv_minimum))
        # The next one gets a new process.
        started = await engines.start(B, good, found, None, Grant(sizes.weights, sizes.workspace, sizes.kv_minimum))
        await started.engine.stop()
        assert started.grant.total <= sizes.least
    finally:
        await host.close()
    with pytest.raises(Refused, match="shutting down"):
        await ask(host, A)


@pytest.mark.long
async def test_sleepers_that_leave_nothing_are_refused() -> None:
    engines = Processes(2**30)
    try:
        with pytest.raises(UsageError, match=r"--sleepers 1\.00 GiB leaves none of the 1\.00 GiB"):
            await engines.open(0.9, 2**30)
    finally:
        await engines.close()
