"""A lock applies to the existing folder, whatever other processes delete and create in between."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from plimsoll_runtime.utils.folder_lock import lock, remove

NAME = "lock"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    return path


def taken(folder: Path) -> int:
    held = lock(folder, NAME, make=True)
    assert held is not None
    return held


def before_locking(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Run another action once between opening a file and locking it."""
    plain, left = fcntl.flock, [act]

    def flock(descriptor: int, operation: int) -> None:
        if left:
            left.pop()()
        plain(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)


def test_one_at_a_time_and_the_next_when_it_is_closed(folder: Path) -> None:
    held = taken(folder)
    assert lock(folder, NAME, make=True) is None
    os.close(held)
    os.close(taken(folder))


def test_a_folder_or_a_file_that_is_not_there_is_not_made(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        lock(folder / "none", NAME, make=True)
    with pytest.raises(FileNotFoundError):
        lock(folder, NAME, make=False)
    assert not list(folder.iterdir())


def test_links_are_refused(folder: Path) -> None:
    (folder / NAME).symlink_to(folder / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        lock(folder, NAME, make=True)


def test_what_is_deleted_before_it_is_locked_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deleted_by_another() -> None:
        remove(folder, NAME)

    before_locking(monkeypatch, deleted_by_another)
    with pytest.raises(FileNotFoundError):
        lock(folder, NAME, make=True)


def test_what_is_deleted_and_taken_anew_before_it_is_locked_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[int] = []

    def taken_anew_by_another() -> None:
        remove(folder, NAME)
        folder.mkdir()
        others.append(taken(folder))

    before_locking(monkeypatch, taken_anew_by_another)
    assert lock(folder, NAME, make=True) is None
    os.close(others[0])
    os.close(taken(folder))


def test_a_folder_goes_with_all_that_is_in_it_the_lock_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a").touch()
    (folder / "deep").mkdir()
    (folder / "deep" / "b").touch()
    (folder / "link").symlink_to(folder.parent)
    held = taken(folder)
    plain, order = Path.unlink, []

    def unlink(self: Path, missing_ok: bool = False) -> None:
        order.append(self.name)
        plain(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    remove(folder, NAME)
    os.close(held)
    assert not folder.exists()
    assert folder.parent.exists()
    assert sorted(order[:-1]) == ["a", "link"]
    assert order[-1] == NAME
    remove(folder, NAME)


@pytest.mark.parametrize("took_it", [True, False])
def test_who_takes_a_folder_that_is_being_deleted_keeps_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, took_it: bool
) -> None:
    """Files that enter a folder without its lock are an error; otherwise they would stay unnoticed."""
    held, plain, others = taken(folder), Path.rmdir, []

    def rmdir(self: Path) -> None:
        if took_it:
            others.append(taken(folder))
        (folder / "block").touch()
        plain(self)

    monkeypatch.setattr(Path, "rmdir", rmdir)
    if took_it:
        remove(folder, NAME)
        assert lock(folder, NAME, make=False) is None
        os.close(others[0])
    else:
        with pytest.raises(OSError, match="not empty"):
            remove(folder, NAME)
    os.close(held)
    assert (folder / "block").exists()


def test_a_folder_that_was_taken_and_given_up_amid_its_deletion_goes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another process deleted it too."""
    held, plain, tries = taken(folder), Path.rmdir, []

    def rmdir(self: Path) -> None:
        tries.append(self)
        other = taken(folder) if len(tries) == 1 else None
        try:
            plain(self)
        finally:
            if other is not None:
                (folder / NAME).unlink()
                os.close(other)

    monkeypatch.setattr(Path, "rmdir", rmdir)
    remove(folder, NAME)
    os.close(held)
    assert not folder.exists()
    assert len(tries) == 2
