"""A file that is read again when it changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plimsoll_runtime.utils.file_watcher import WatchedFile


def number(path: Path) -> int:
    return int(path.read_text())


def test_it_is_read_when_it_has_changed_and_not_otherwise(tmp_path: Path) -> None:
    read: list[str] = []
    path = tmp_path / "file"
    path.write_text("1")

    def note(file: Path) -> str:
        read.append(file.read_text())
        return read[-1]

    file = WatchedFile(path, note)
    assert (file.value(), file.value(), read) == ("1", "1", ["1"])
    before = path.stat()
    path.write_text("2")  # written in place, with the same length
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert (file.value(), file.value(), read) == ("2", "2", ["1", "2"])


def test_it_is_looked_at_no_more_often_than_it_is_told_to(tmp_path: Path) -> None:
    now, path = 0.0, tmp_path / "file"
    path.write_text("1")
    file = WatchedFile(path, number, every=2.0, clock=lambda: now)
    path.write_text("22")
    now = 1.9
    assert file.value() == 1
    now = 2.0
    assert file.value() == 22


def test_what_was_read_last_stays_and_each_trouble_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file"
    path.write_text("1")
    file = WatchedFile(path, number)
    path.write_text("two")
    assert [file.value() for _ in range(3)] == [1, 1, 1]
    assert len(caplog.records) == 1
    assert "the previous content stays in force: invalid literal" in caplog.text
    path.unlink()
    assert [file.value() for _ in range(3)] == [1, 1, 1]
    assert len(caplog.records) == 2
    path.write_text("333")
    assert file.value() == 333
    path.unlink()
    assert file.value() == 333
    assert len(caplog.records) == 3


def test_the_first_time_it_must_be_of_use(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        WatchedFile(tmp_path / "none", number)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="invalid literal"):
        WatchedFile(tmp_path / "file", number)
