"""Commands: error messages of failures, and that no command outlives the test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.errors import ClusterError
from cluster.layout import SOURCE
from cluster.locks import InUseError, exclusive
from cluster.packages import missing
from cluster.shell import run, succeeds, tail
from cluster.wait import until

RUNNER = """
import sys
sys.path.insert(0, sys.argv[1])
from cluster.shell import family, run
pipe, script = sys.argv[2:]
run(["sh", "-c", script, pipe] if "exec sleep" in script else family("sh", "-c", script, pipe))
"""


def test_output_is_returned_and_input_given() -> None:
    assert run(["cat"], stdin="hello") == "hello"
    assert run(["sh", "-c", "echo $GREETING"], env={"GREETING": "hi"}) == "hi\n"


def test_a_failure_shows_the_end_of_what_was_said() -> None:
    with pytest.raises(ClusterError, match=r"exit code 3:\n(.|\n)*the reason"):
        run(["sh", "-c", "echo noise; echo the reason >&2; exit 3"])


def test_a_failure_with_a_log_names_it(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "thing.log"
    with pytest.raises(ClusterError, match=str(log)):
        run(["sh", "-c", "echo the reason; exit 1"], log=log)
    assert log.read_text() == "the reason\n"


def test_a_missing_command_is_an_error_that_names_it() -> None:
    with pytest.raises(ClusterError, match="no-such-command"):
        run(["no-such-command"])
    assert not succeeds(["no-such-command"])


def test_only_the_last_lines_are_shown() -> None:
    assert tail("1\n2\n3\n", lines=2) == "    2\n    3"


ITSELF = "exec sleep 600"
ITS_CHILD = pytest.param("sleep 600; true", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root"))


@pytest.mark.parametrize("last", [ITSELF, ITS_CHILD])
def test_a_command_dies_with_us_even_when_we_are_killed(tmp_path: Path, last: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = f'exec 3>"$0"; echo up >&3; {last}'
    command = [sys.executable, "-c", RUNNER, str(SOURCE.parent), str(pipe), script]
    with subprocess.Popen(command) as runner, pipe.open() as reader:
        assert reader.readline() == "up\n"
        runner.kill()
        assert reader.read() == ""  # the pipe closes when the last writer has ended


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(InUseError, match="in use"), exclusive(tmp_path, wait=False):
        pytest.fail("two held it")
    with exclusive(tmp_path, wait=False):
        pass


def test_waiting_ends_with_the_log_to_read() -> None:
    until("nothing", lambda: True, seconds=0, log="x.log")
    with pytest.raises(ClusterError, match=r"thing was not ready after 0 s; its log: x\.log"):
        until("thing", lambda: False, seconds=0, log="x.log", every=0)
    with pytest.raises(ClusterError, match="ended before it was ready"):
        until("thing", lambda: False, seconds=60, log="x.log", failed=lambda: True)


def test_packages_are_missing_by_what_they_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.packages.NEEDED", {"sh": "dash", "/no/such/file": "absent", "no-such-command": "gone"})
    assert missing() == ["absent", "gone"]
