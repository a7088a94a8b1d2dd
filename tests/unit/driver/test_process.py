"""The child process by itself: it never outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

PARENT = """
import sys, time
from plimsoll_runtime.driver.process.child import EngineChild
from plimsoll_runtime.engine.config import EngineConfig
if sys.argv[1] == "stands-by":
    import asyncio
    from plimsoll_runtime.driver.process.standby import ForkServer
    server = ForkServer.spawn()
    print(server.pid)
    print(asyncio.run(server.fork()).pid, flush=True)
    time.sleep(60)
child = EngineChild(EngineConfig(model=sys.argv[1]), "fake_engine:build")
while (event := child.receive()) is None or type(event).__name__ != sys.argv[2]:
    time.sleep(0.01)
if sys.argv[3] == "forks":
    import os
    if (pid := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    print(pid)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("model", "event"), [("fine", "EngineInfo"), ("loads-for-ever:{}", "LoadProgress")], ids=["idle", "loading"]
)
def test_a_killed_parent_takes_its_engine_along(model: str, event: str, tmp_path: Path) -> None:
    with start(model.format(tmp_path / "pid"), event, "alone") as parent:
        engine = psutil.Process(int(read_line(parent)))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        engine.wait(timeout=120)


def test_even_when_a_fork_of_the_parent_holds_the_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start("fine", "EngineInfo", "forks") as parent:
        fork, engine = psutil.Process(int(read_line(parent))), psutil.Process(int(read_line(parent)))
        try:
            parent.send_signal(signal.SIGKILL)
            parent.wait()
            engine.wait(timeout=120)
            assert fork.is_running()
        finally:
            fork.kill()


def test_it_is_not_started_by_hand() -> None:
    command = [sys.executable, "-m", "plimsoll_runtime.driver.process.engine_process"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "not by hand" in done.stderr


def start(*arguments: str) -> subprocess.Popen[str]:
    """A parent of an engine."""
    command = [sys.executable, "-c", PARENT, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline()
