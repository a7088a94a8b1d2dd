"""The engine process alone: it never outlives its parent."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from driver_support.parent import read_line, start


@pytest.mark.parametrize(
    ("model", "event"), [("fine", "EngineInfo"), ("loads-for-ever:{}", "LoadProgress")], ids=["idle", "loading"]
)
def test_a_killed_parent_takes_its_engine_along(model: str, event: str, tmp_path: Path) -> None:
    with start(model.format(tmp_path / "pid"), event, "alone") as parent:
        engine = psutil.Process(int(read_line(parent)))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        engine.wait(timeout=120)


@pytest.mark.long
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
    assert "do not start an engine process by hand" in done.stderr
