"""The asyncio client with a real child process: normal work and failures."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import request, tokens_of
from fake_engine import FACTORY, POISON_PROMPT
from simulated import oracle

from plimsoll_runtime.driver.clients.async_client import DEADLINE_SECONDS, AsyncEngine
from plimsoll_runtime.driver.process.heartbeat import Watch
from plimsoll_runtime.engine.config import STEP_SECONDS, EngineConfig
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestOutput
from plimsoll_runtime.errors import (
    DeviceFailedError,
    DeviceLostError,
    EngineDeadError,
    ErrorKind,
    PlimsollError,
    UsageError,
)

MAX_LEN = 1999 * 4
HUNG_SECONDS = 3
"""A step of these engines takes a millisecond, and a live engine waits for a CPU core less than this."""


@asynccontextmanager
async def running(
    model: str = "fine",
    on_progress: Callable[[str, float], None] | None = None,
    max_sequences: int = 64,
    step_timeout: float = STEP_SECONDS,
) -> AsyncIterator[AsyncEngine]:
    config = EngineConfig(model=model, max_batch_tokens=256, max_sequences=max_sequences, step_timeout=step_timeout)
    engine = await AsyncEngine.start(config, on_progress, factory=FACTORY)
    try:
        yield engine
    finally:
        await engine.stop()


async def answer(engine: AsyncEngine, wanted: AddRequest) -> list[RequestOutput]:
    return [output async for output in engine.generate(wanted)]


async def begun(engine: AsyncEngine, wanted: AddRequest) -> tuple[asyncio.Task[list[RequestOutput]], asyncio.Event]:
    """Run a request in a task; the event is set at its first output."""
    first = asyncio.Event()

    async def run() -> list[RequestOutput]:
        outputs = []
        async for output in engine.generate(wanted):
            outputs.append(output)
            first.set()
        return outputs

    return asyncio.create_task(run()), first


async def test_an_answer_comes_as_it_is_made() -> None:
    async with running() as engine:
        wanted = request("r", [1, 2, 3], max_tokens=20)
        outputs = await answer(engine, wanted)
        assert tokens_of(outputs) == oracle(wanted, MAX_LEN).token_ids
        assert outputs[-1].finish_reason == "length"
        assert engine.alive
        assert engine.info.num_blocks == 2000
        assert engine.stats.generated_tokens == 20


async def test_progress_is_told_in_steps_that_can_be_seen() -> None:
    seen: list[tuple[str, float]] = []
    async with running(on_progress=lambda stage, fraction: seen.append((stage, fraction))):
        pass
    weights = [fraction for stage, fraction in seen if stage == "weights"]
    assert weights == sorted(weights)
    assert weights[-1] == 1.0
    assert 90 <= len(weights) <= 110
    assert seen[-1] == ("warm-up", 1.0)


async def test_a_thousand_requests_at_once() -> None:
    wanted = [request(f"r{i}", [i % 40, i // 40, 1], max_tokens=3 + i % 5) for i in range(1000)]
    async with running() as engine:
        answers = await asyncio.gather(*(answer(engine, w) for w in wanted))
        for w, outputs in zip(wanted, answers, strict=True):
            assert tokens_of(outputs) == oracle(w, MAX_LEN).token_ids
        assert engine.stats.waiting == 0


async def test_a_reader_who_is_slow_holds_up_nobody_and_misses_nothing() -> None:
    async with running() as engine:
        slow_request = request("slow", [1, 2], max_tokens=100, logprobs=0)
        async with aclosing(engine.generate(slow_request)) as slow:
            first = await anext(slow)
            await answer(engine, request("quick", [3], max_tokens=200))
            rest = [output async for output in slow]
        assert len(rest) < 10
        assert tokens_of([first, *rest]) == oracle(slow_request, MAX_LEN).token_ids
        assert sum(len(o.logprobs) for o in [first, *rest]) == 100


async def test_closing_an_answer_aborts_it() -> None:
    async with running(max_sequences=1) as engine:
        async with aclosing(engine.generate(request("endless", [1], max_tokens=None))) as outputs:
            await anext(outputs)
        wanted = request("next", [2], max_tokens=5)
        assert len(tokens_of(await answer(engine, wanted))) == 5
        assert engine.stats.running == 0


async def test_gauges_fall_when_the_last_request_is_aborted() -> None:
    async with running() as engine:
        async with aclosing(engine.generate(request("endless", [1], max_tokens=None))) as outputs:
            await anext(outputs)
        async with asyncio.timeout(60):
            while engine.stats.running:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [(request("r", []), "empty"), (request("r", [1] * MAX_LEN), "tokens"), (request("r", [99]), "vocabulary")],
)
async def test_what_cannot_be_served_is_refused_here(wanted: AddRequest, message: str) -> None:
    async with running() as engine:
        with pytest.raises(UsageError, match=message):
            await answer(engine, wanted)
        assert await answer(engine, request("r", [1]))


async def test_an_id_in_use_is_refused_and_the_other_goes_on() -> None:
    async with running() as engine, aclosing(engine.generate(request("r", [1], max_tokens=50))) as outputs:
        await anext(outputs)
        with pytest.raises(UsageError, match="in use"):
            await answer(engine, request("r", [2]))
        assert [o async for o in outputs][-1].finish_reason == "length"


async def test_a_killed_engine_is_told_to_everyone_at_once() -> None:
    async with running() as engine:
        tasks = [await begun(engine, request(f"r{i}", [i], max_tokens=None)) for i in range(8)]
        for _, first in tasks:
            await first.wait()
        os.kill(engine.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            results = await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
            await engine.wait_dead()
        assert all(isinstance(r, EngineDeadError) and "killed by signal 9" in str(r) for r in results)
        assert not engine.alive
        with pytest.raises(EngineDeadError):
            await answer(engine, request("late", [1]))


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("trouble", "message", "error"),
    [
        ("raises", "a step failed with RuntimeError: the device is gone", EngineDeadError),
        ("device-memory", "OutOfMemoryError: the device is full", EngineDeadError),
        ("exits", "ended with code 77", EngineDeadError),
        ("faults", "an illegal memory access was encountered.*CUDA_LAUNCH_BLOCKING=1", DeviceFailedError),
        ("ecc", "AcceleratorError: CUDA error: uncorrectable ECC error.*kubectl cordon", DeviceLostError),
        ("lost", "no CUDA-capable device is detected.*no longer answers", DeviceLostError),
    ],
)
async def test_an_engine_that_fails_is_told_with_its_reason(
    trouble: str, message: str, error: type[EngineDeadError]
) -> None:
    """A kernel's fault affects only its process; damaged memory and a lost device affect all processes."""
    async with running(trouble) as engine:
        other, first = await begun(engine, request("other", [1], max_tokens=None))
        await first.wait()
        with pytest.raises(EngineDeadError, match=message) as caught:
            await answer(engine, request("r", [POISON_PROMPT]))
        assert type(caught.value) is error
        with pytest.raises(EngineDeadError, match=message):
            await other


async def test_a_process_whose_device_has_failed_ends_with_a_code_of_its_own() -> None:
    async with running("faults") as engine:
        with pytest.raises(DeviceFailedError):
            await answer(engine, request("r", [POISON_PROMPT]))
        process = engine._child
        async with asyncio.timeout(60):
            await asyncio.to_thread(process.wait)
        assert process.exit_code == 8 == ErrorKind.DEVICE.exit_code


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        ("source", ErrorKind.SOURCE, "no such model"),
        ("model", ErrorKind.MODEL, "an unexpected tensor"),
        ("memory", ErrorKind.MEMORY, "it needs 2 GiB"),
        ("usage", ErrorKind.USAGE, "cannot be"),
        ("bug", ErrorKind.ENGINE, "ValueError: a bug"),
        ("host-memory", ErrorKind.MEMORY, "MemoryError: no memory"),
        ("ecc-while-loading", ErrorKind.DEVICE, "uncorrectable ECC error.*nvidia-smi"),
        ("killed-while-loading", ErrorKind.ENGINE, "killed by signal 9"),
    ],
)
async def test_why_it_could_not_be_loaded(model: str, kind: ErrorKind, message: str) -> None:
    with pytest.raises(PlimsollError, match=message) as caught:
        await AsyncEngine.start(EngineConfig(model=model), factory=FACTORY)
    assert caught.value.kind is kind
    assert isinstance(caught.value, DeviceLostError) == (kind is ErrorKind.DEVICE)


@pytest.mark.long
async def test_an_engine_that_must_have_a_gpu_and_finds_none_says_that_it_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It fails before it reads anything: it would compute on the CPU, possibly in memory that was not granted."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceLostError, match=r"--device cuda needs a GPU, but torch finds none: "):
        await AsyncEngine.start(EngineConfig(model="/nowhere", device="cuda"))


async def test_whoever_ends_an_engine_may_say_why() -> None:
    async with running() as engine:
        task, first = await begun(engine, request("r", [1], max_tokens=None))
        await first.wait()
        await engine.stop(DeviceLostError("the device went"))
        with pytest.raises(DeviceLostError, match="the device went"):
            await task


async def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    start = asyncio.create_task(AsyncEngine.start(EngineConfig(model=f"loads-for-ever:{mark}"), factory=FACTORY))
    async with asyncio.timeout(60):
        while not (mark.exists() and mark.read_text()):
            await asyncio.sleep(0.02)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not psutil.pid_exists(int(mark.read_text()))


async def test_stop_ends_the_process_and_whoever_waits() -> None:
    async with running() as engine:
        task, first = await begun(engine, request("r", [1], max_tokens=None))
        await first.wait()
        await engine.stop()
        with pytest.raises(EngineDeadError, match="was stopped"):
            await task
        await engine.wait_dead()
        assert not psutil.pid_exists(engine.pid)


async def test_stop_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plimsoll_runtime.driver.clients.async_client.STOP_SECONDS", 0.2)
    async with running("hangs") as engine:
        task, _ = await begun(engine, request("r", [POISON_PROMPT]))
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await engine.stop()
        with pytest.raises(EngineDeadError):
            await task


async def test_signals_to_the_engine_are_the_servers_business() -> None:
    async with running() as engine:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(engine.pid, number)
        assert await answer(engine, request("r", [1]))
        assert os.getpgid(engine.pid) != os.getpgid(0), "Ctrl-C does not reach it either"


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a path short enough for a socket, wherever tests keep their files."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


async def test_nobody_else_can_reach_the_sockets_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, short: Path
) -> None:
    deep = short / ("d" * 100)
    deep.mkdir()
    for folder in (short, deep):
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        async with running() as engine:
            made = engine._child._folder.path
            assert stat.S_IMODE(made.stat().st_mode) == 0o700
            assert (made.parent == short) == (folder == short), "a path too long for a socket is avoided"
            assert await answer(engine, request("r", [1]))
        assert not made.exists()


async def test_descriptors_are_given_back() -> None:
    async with running():
        pass
    before = psutil.Process().num_fds()
    for _ in range(3):
        async with running():
            pass
    async with asyncio.timeout(60):
        while psutil.Process().num_fds() > before:  # ZeroMQ closes some in a background thread
            await asyncio.sleep(0.01)


@pytest.mark.long
async def test_an_engine_that_is_stopped_in_a_step_is_ended_with_all_its_requests() -> None:
    async with running(step_timeout=HUNG_SECONDS) as engine:
        tasks = [await begun(engine, request(f"r{i}", [i], max_tokens=None)) for i in range(3)]
        for _, first in tasks:
            await first.wait()
        os.kill(engine.pid, signal.SIGSTOP)
        async with asyncio.timeout(60):
            results = await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
            await engine.wait_dead()
        assert all(isinstance(r, EngineDeadError) and "hung and was killed" in str(r) for r in results), results
        assert not engine.alive


@pytest.mark.long
async def test_an_idle_engine_that_is_stopped_is_ended_once_it_is_asked() -> None:
    async with running() as engine:
        await answer(engine, request("r", [1]))
        await resting(engine)
        os.kill(engine.pid, signal.SIGSTOP)
        lose_patience(engine)
        for name in ("impatient", "patient"):
            task, _ = await begun(engine, request(name, [1]))
            await asyncio.sleep(0)
            if name == "impatient":
                task.cancel()
        with pytest.raises(EngineDeadError, match="did not read a request"):
            async with asyncio.timeout(60):
                await task


async def test_a_step_that_does_not_end_is_ended() -> None:
    async with running("hangs", step_timeout=HUNG_SECONDS) as engine:
        await warm(engine)
        with pytest.raises(EngineDeadError, match=f"a step took more than {HUNG_SECONDS} s and ten times as long"):
            async with asyncio.timeout(60):
                await answer(engine, request("r", [POISON_PROMPT]))


async def test_a_deadline_holds_even_if_the_engine_does_nothing() -> None:
    async with running() as engine:
        os.kill(engine.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                (output,) = await answer(engine, request("r", [1], deadline=0.1))
        finally:
            os.kill(engine.pid, signal.SIGCONT)
        assert (output.finish_reason, output.token_ids) == ("deadline", [])
        assert output.error is not None
        assert "0.1 s passed" in output.error
        assert await answer(engine, request("r", [1])), "its id is free again, here and in the engine"


async def test_an_answer_that_has_begun_outlives_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, timers = asyncio.get_running_loop(), []
    call_at = loop.call_at

    def recorded(when: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        timers.append(call_at(when, *arguments, **options))
        return timers[-1]

    async with running() as engine:
        monkeypatch.setattr(loop, "call_at", recorded)
        before = loop.time()
        async with aclosing(engine.generate(request("r", [1], max_tokens=50, deadline=3600.0))) as outputs:
            first = await anext(outputs)
            (timer,) = [t for t in timers if t.when() >= before + 3600.0 + DEADLINE_SECONDS]
            assert timer.cancelled()
            rest = [output async for output in outputs]
    assert len(tokens_of([first, *rest])) == 50


async def test_a_process_that_cannot_be_killed_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a process that waits for a driver in the kernel."""
    monkeypatch.setattr("plimsoll_runtime.driver.clients.async_client.STOP_SECONDS", 0.1)
    monkeypatch.setattr("plimsoll_runtime.driver.clients.async_client.KILL_SECONDS", 0.1)
    monkeypatch.setattr("plimsoll_runtime.driver.process.child.KILL_SECONDS", 0.1)
    async with running() as engine:
        process = engine._child._process
        os.kill(engine.pid, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(process, "kill", lambda: None)
            async with asyncio.timeout(60):
                await engine.stop()
        os.kill(engine.pid, signal.SIGKILL)
        assert engine._child.wait(60)


async def resting(engine: AsyncEngine) -> None:
    """Wait until the engine is idle."""
    async with asyncio.timeout(60):
        while engine._child._pulse.read().due_ns:
            await asyncio.sleep(0.01)


def lose_patience(engine: AsyncEngine) -> None:
    """Shorten how long a stopped engine may leave a request unread. On a busy machine a running engine may miss it."""
    engine._child._watch = Watch(HUNG_SECONDS)


async def warm(engine: AsyncEngine) -> None:
    """Let the engine measure steps of one and two tokens."""
    await answer(engine, request("warm", [1], max_tokens=4))


async def test_the_cache_is_resized_while_answers_come() -> None:
    engine = await AsyncEngine.start(EngineConfig(model="resizes"), factory=FACTORY)
    try:
        each = engine.info.kv_bytes // engine.info.num_blocks
        assert engine.kv_bytes == 2000 * each
        answer = engine.generate(request("r", [1, 2, 3], max_tokens=500))
        tokens = list((await anext(answer)).token_ids)
        assert await engine.resize(1000 * each + 1) == 1000 * each
        assert engine.kv_bytes == 1000 * each
        tokens += [token async for output in answer for token in output.token_ids]
        assert len(tokens) == 500
        assert await engine.resize(3000 * each) == 3000 * each
        with pytest.raises(UsageError, match=r"the KV cache can have .* bytes, not 100: "):
            await engine.resize(100)
        assert engine.kv_bytes == 3000 * each
    finally:
        await engine.stop()


async def test_who_asked_for_another_size_before_hears_what_the_later_one_came_to() -> None:
    engine = await AsyncEngine.start(EngineConfig(model="resizes"), factory=FACTORY)
    try:
        each = engine.info.kv_bytes // engine.info.num_blocks
        sizes = await asyncio.gather(*(engine.resize(blocks * each) for blocks in (1500, 2500)))
        assert sizes[1] == 2500 * each
        assert sizes[0] in (1500 * each, 2500 * each), "the first may be done before the second comes"
        waiting = asyncio.create_task(engine.resize(1200 * each))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await engine.resize(1300 * each) == 1300 * each
    finally:
        await engine.stop()


async def test_who_waits_for_another_size_hears_that_the_engine_died() -> None:
    engine = await AsyncEngine.start(EngineConfig(model="resizes"), factory=FACTORY)
    try:
        os.kill(engine.pid, signal.SIGSTOP)
        waiting = asyncio.create_task(engine.resize(engine.info.kv_bytes))
        await asyncio.sleep(0)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError):
            await waiting
        with pytest.raises(EngineDeadError):
            await engine.resize(1)
    finally:
        await engine.stop()
