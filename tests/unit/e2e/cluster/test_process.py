"""A recorded process is never confused with another one that got its id."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.errors import ClusterError
from cluster.process import Process, find_process, parse_stat, read_record, recorded, state

AFTER_NAME = "S 1 22 22 0 -1 4194304 9 8 7 6 5 4 3 2 20 0 1 0 987654 1000 1 2 3"


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[tuple[Process, subprocess.Popen[bytes]]]:
    """A process that has written its own record and then became `cat`, which ends when its input ends."""
    record = tmp_path / "process"
    with subprocess.Popen(recorded(record, ["cat"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        started.stdin.write(b"x")
        started.stdin.flush()
        assert os.read(started.stdout.fileno(), 1) == b"x"  # it responds, so the record is written
        found = read_record(record)
        assert found is not None
        yield found, started


@pytest.mark.parametrize("name", ["cat", "a b", "odd) S 1 (name", "("])
def test_the_name_in_brackets_may_hold_anything(name: str) -> None:
    line = f"1234 ({name}) {AFTER_NAME}"
    assert parse_stat(line) == Process(pid=1234, started=987654)
    assert state(line) == "S"


@pytest.mark.parametrize("line", ["", "1234", "1234 (cat) S 1", "cat) S"])
def test_anything_else_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a line"):
        parse_stat(line)


def test_the_record_is_of_the_command_itself(sleeper: tuple[Process, subprocess.Popen[bytes]]) -> None:
    found, started = sleeper
    assert found.pid == started.pid
    assert found.alive
    assert not replace(found, started=found.started - 1).alive  # the id belongs to another process


def test_one_with_a_reused_id_is_not_killed(sleeper: tuple[Process, subprocess.Popen[bytes]]) -> None:
    found, started = sleeper
    replace(found, started=found.started - 1).kill()
    assert started.poll() is None


def test_killing_waits_until_it_is_dead_even_if_nobody_collects_it(
    sleeper: tuple[Process, subprocess.Popen[bytes]],
) -> None:
    found, _ = sleeper
    found.kill()
    assert not found.alive
    assert find_process(found.pid) is None  # a zombie: its parent has not reaped it
    found.kill()


def test_its_child_is_found() -> None:
    with subprocess.Popen(["sh", "-c", "cat; true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(b"x")
        shell.stdin.flush()
        assert os.read(shell.stdout.fileno(), 1) == b"x"
        parent = find_process(shell.pid)
        assert parent is not None
        child = parent.only_child()
        assert child is not None
        assert Path(f"/proc/{child.pid}/comm").read_text() == "cat\n"
        assert child.only_child() is None


def test_a_signal_reaches_it_and_never_another_with_its_id(
    sleeper: tuple[Process, subprocess.Popen[bytes]],
) -> None:
    found, started = sleeper
    with pytest.raises(ClusterError, match="has ended"):
        replace(found, started=found.started - 1).signal(signal.SIGTERM)
    assert started.poll() is None
    found.signal(signal.SIGTERM)
    assert started.wait() == -signal.SIGTERM


def test_its_id_in_its_own_namespace_is_found(sleeper: tuple[Process, subprocess.Popen[bytes]]) -> None:
    found, _ = sleeper
    assert found.inner_pid() == found.pid
    found.kill()
    assert Process(pid=2**22 + 1, started=0).inner_pid() is None


def test_no_record_is_no_process(tmp_path: Path) -> None:
    assert read_record(tmp_path / "absent") is None
    (tmp_path / "empty").touch()
    assert read_record(tmp_path / "empty") is None
