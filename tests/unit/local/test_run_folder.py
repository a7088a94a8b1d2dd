from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.local.run_folder import RunFolder, all_runs, state_root, write_atomically


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_root() == tmp_path / "state" / "plimsoll"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # the specification says to ignore it
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_root() == tmp_path / ".local" / "state" / "plimsoll"


def test_a_run_is_found_while_it_is_held() -> None:
    folder = RunFolder(8000)
    assert not folder.is_running()
    assert all_runs() == []
    with folder.held():
        assert folder.read() is None
        folder.write({"pid": 1})
        other = RunFolder(8000)
        assert other.read() == {"pid": 1}
        assert [run.port for run in all_runs()] == [8000]
        with pytest.raises(UsageError, match="plimsoll down --port 8000"), other.held():
            pass
    assert not folder.is_running()
    assert folder.read() is None


def test_a_killed_run_leaves_nothing_that_looks_alive() -> None:
    code = (
        "import sys; from plimsoll_runtime.local.run_folder import RunFolder\n"
        "s = RunFolder(8001)\n"
        "with s.held():\n  s.write({'pid': 1}); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert RunFolder(8001).read() == {"pid": 1}
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert (RunFolder(8001).folder / "up.json").exists()
    assert RunFolder(8001).read() is None
    assert all_runs() == []


def test_logs_begin_anew() -> None:
    folder = RunFolder(8000)
    with folder.held():
        folder.log("gemma-0").write_text("old")
    with folder.held():
        assert not folder.log("gemma-0").exists()
    assert folder.folder.stat().st_mode & 0o077 == 0


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_atomically(path, {"a": 1})
    write_atomically(path, {"a": 2})
    assert path.read_text() == '{\n  "a": 2\n}'
    assert list(tmp_path.glob(".*")) == []
