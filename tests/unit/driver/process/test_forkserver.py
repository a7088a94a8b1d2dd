"""The fork server: parents of its forks, shared memory, and the end of both."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from driver_support.parent import read_line, start
from model_support.tiny import make_model, save_model

from plimsoll_runtime.driver.clients.async_client import AsyncEngine
from plimsoll_runtime.driver.process import fork_server
from plimsoll_runtime.driver.process.control_socket import ParentEnd, StandbyDeadError
from plimsoll_runtime.driver.process.handshake import Fork, Ready
from plimsoll_runtime.driver.process.standby import ForkServer
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import ProcessFailed
from plimsoll_runtime.errors import EngineDeadError, SourceError
from plimsoll_runtime.execution.memory.system import footprint, private_bytes

FAKE = "fake_engine:build"


async def test_what_it_forks_is_our_child_and_shares_what_was_imported(server: ForkServer) -> None:
    one, other = await server.fork(), await server.fork()
    for standby in (one, other):
        await standby.ready()
        process = psutil.Process(standby.pid)
        assert (process.ppid(), process.name()) == (os.getpid(), "plimsoll-engine")
        assert os.getpgid(standby.pid) == standby.pid, "a terminal's Ctrl-C is for us"
        assert private_bytes(standby.pid) < footprint(standby.pid).anonymous / 4, "torch's objects are written by none"
    one.close()
    assert one.process.returncode == -signal.SIGKILL
    assert not psutil.pid_exists(one.pid), "it is reaped"
    assert other.alive
    other.close()


@pytest.mark.long
async def test_engines_go_on_without_it(server: ForkServer) -> None:
    engine = await AsyncEngine.start(EngineConfig(model="fine"), factory=FAKE, standby=await server.fork())
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(StandbyDeadError, match=f"{server.pid} was killed by signal 9"):
        await server.fork()
    assert not server.alive
    assert engine.alive
    await engine.stop()
    assert not psutil.pid_exists(engine.pid), "it is reaped"


@pytest.mark.long
async def test_how_an_engine_ends_is_told_as_of_any_other(server: ForkServer) -> None:
    with pytest.raises(SourceError, match="no such model"):
        await AsyncEngine.start(EngineConfig(model="source"), factory=FAKE, standby=await server.fork())
    engine = await AsyncEngine.start(EngineConfig(model="fine"), factory=FAKE, standby=await server.fork())
    os.kill(engine.pid, signal.SIGKILL)
    await engine.wait_dead()
    assert isinstance(engine.failure, EngineDeadError)
    assert "was killed by signal 9" in str(engine.failure)
    await engine.stop()


@pytest.mark.long
async def test_one_that_nobody_waits_for_any_more_ends(server: ForkServer) -> None:
    await server.ready()
    before = set(psutil.Process().children())
    os.kill(server.pid, signal.SIGSTOP)  # otherwise it may have forked before
    forking = asyncio.create_task(server.fork())
    await asyncio.sleep(0)
    forking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forking
    os.kill(server.pid, signal.SIGCONT)
    last = await server.fork()
    assert {child.pid for child in set(psutil.Process().children()) - before} == {last.pid}
    last.close()


async def test_to_close_it_ends_the_wait_for_a_process() -> None:
    server = ForkServer.spawn()
    forking = asyncio.create_task(server.fork())
    await asyncio.sleep(0)
    server.close()
    with pytest.raises(StandbyDeadError, match=f"{server.pid} was killed by signal 9"):
        await forking
    server.close()


@pytest.mark.long
@pytest.mark.parametrize("failing", [1, 2], ids=["the one between", "the engine"])
async def test_a_fork_that_fails_is_refused_and_the_next_one_is_tried(failing: int) -> None:
    code = f"""
import os, sys
forks, tries = os.fork, 0
def fork():
    global tries
    tries += 1
    if tries == {failing}:
        raise OSError(11, "Resource temporarily unavailable")
    return forks()
os.fork = fork
from plimsoll_runtime.driver.process import fork_server
sys.exit(fork_server.main())
"""
    ours, theirs = socket.socketpair()
    end, other = socket.socketpair()
    line = ParentEnd(ours)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=theirs.fileno())
    theirs.close()
    with end, other:
        assert isinstance(await line.reply(), Ready)
        line.give(Fork(), [other.fileno()])
        reply = await line.reply()
        assert isinstance(reply, ProcessFailed)
        assert reply.kind == "out-of-memory"
        assert "cannot fork another engine process: [Errno 11] Resource temporarily unavailable" in reply.message
        assert process.returncode is None
    line.close()
    assert await process.wait() == 0, "it ends with its client"


def test_a_fork_that_fails_leaves_no_pipe_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    pipes: list[tuple[int, int]] = []
    pipe = os.pipe

    def made() -> tuple[int, int]:
        pipes.append(pipe())
        return pipes[-1]

    monkeypatch.setattr(os, "fork", fails)
    monkeypatch.setattr(os, "pipe", made)
    with pytest.raises(OSError, match="temporarily unavailable"):
        fork_server._fork()
    [ends] = pipes
    for end in ends:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)


@pytest.mark.long
def test_importing_touches_no_device() -> None:
    """If a process has called a driver, its forks cannot use any device."""
    code = """
import torch
def touched(*_): raise AssertionError("a device is looked for")
for module in (torch.cuda, torch.accelerator):
    for name in ("is_available", "device_count", "init", "current_accelerator"):
        if hasattr(module, name): setattr(module, name, touched)
from plimsoll_runtime.driver.process import preload
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.long
def test_a_killed_parent_takes_it_and_what_it_has_forked_along() -> None:
    with start("stands-by", "", "alone") as parent:
        processes = [psutil.Process(int(read_line(parent))) for _ in range(2)]
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        for process in processes:
            process.wait(timeout=60)


@pytest.mark.long
async def test_measuring_a_model_needs_no_import_any_more(server: ForkServer, tmp_path: Path) -> None:
    save_model(make_model("LlamaConfig", {"head_dim": 16}), tmp_path)
    standby = await server.fork()
    needs = await standby.needs(EngineConfig(model=str(tmp_path), max_model_len=100))
    assert needs.max_model_len == 100
    assert needs.overhead < footprint(standby.pid).anonymous / 4
    standby.close()
