"""Folders left by killed processes are removed; those of live processes or of unknown origin are not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from plimsoll_runtime.driver.process.child import OWNER, PREFIX, SocketFolder, remove_stale

MAKE_AND_WAIT = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from plimsoll_runtime.driver.process.child import SocketFolder
print(SocketFolder("commands").path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder for temporary files."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def owner_of_a_folder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that makes a folder and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE_AND_WAIT, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_it_is_private_and_goes_with_its_owner(temporary: Path) -> None:
    folder = SocketFolder("commands")
    assert folder.path.parent == temporary
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "commands").touch()
    folder.remove()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_leaves_is_removed_by_the_next(temporary: Path) -> None:
    process, left = owner_of_a_folder(temporary)
    with process:
        remove_stale(temporary)
        assert left.is_dir(), "its owner lives"
        process.kill()
    (left / "commands").touch()
    folder = SocketFolder("commands")
    assert list(temporary.iterdir()) == [folder.path]
    folder.remove()


def test_ones_own_folders_are_not_taken_for_stale(temporary: Path) -> None:
    first, second = SocketFolder("commands"), SocketFolder("commands")
    remove_stale(temporary)
    assert first.path.is_dir()
    first.remove()
    assert list(temporary.iterdir()) == [second.path]
    second.remove()


def test_what_is_not_certainly_ours_stays(temporary: Path, caplog: pytest.LogCaptureFixture) -> None:
    (temporary / f"{PREFIX}unmarked").mkdir()
    (temporary / f"{PREFIX}file").touch()
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / OWNER).touch()
    (temporary / f"{PREFIX}link").symlink_to(elsewhere)
    marked_by_a_link = temporary / f"{PREFIX}marked"
    marked_by_a_link.mkdir()
    (marked_by_a_link / OWNER).symlink_to(elsewhere / OWNER)
    before = sorted(temporary.rglob("*"))
    remove_stale(temporary)
    assert not caplog.records
    assert sorted(temporary.rglob("*")) == before


def test_another_users_folder_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = temporary / f"{PREFIX}left"
    left.mkdir()
    (left / OWNER).touch()
    monkeypatch.setattr(os, "geteuid", lambda: left.stat().st_uid + 1)
    remove_stale(temporary)
    assert left.is_dir()
    monkeypatch.undo()
    remove_stale(temporary)
    assert not left.exists()


def test_one_that_cannot_be_removed_stops_nobody(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = temporary / f"{PREFIX}left"
    left.mkdir()
    (left / OWNER).touch()

    def refuse(path: Path, name: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("plimsoll_runtime.utils.folder_lock.remove", refuse)
        remove_stale(temporary)
    assert f"cannot remove {left}, left by a killed process: [Errno 13]" in caplog.text


def test_what_the_sockets_owner_removes_meanwhile_is_no_error(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeroMQ deletes a socket when it is closed, in a background thread."""
    folder = SocketFolder("commands")
    (folder.path / "commands").touch()
    plain = Path.unlink

    def unlink(self: Path, missing_ok: bool = False) -> None:
        plain(self)
        plain(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    folder.remove()
    assert list(temporary.iterdir()) == []


def test_a_removal_that_was_cut_short_is_finished_by_the_next(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, left = owner_of_a_folder(temporary)
    with process:
        process.kill()
    (left / "commands").touch()
    plain = Path.unlink

    def killed(self: Path, missing_ok: bool = False) -> None:
        """Remove the first file, then act as if the process was killed."""
        plain(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_stale(temporary)
    assert left.is_dir()
    remove_stale(temporary)
    assert not left.exists()


def test_a_path_too_long_for_a_socket_is_avoided(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = temporary / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    folder = SocketFolder("commands")
    assert folder.path.parent == Path("/tmp")
    folder.remove()
