"""Installations are complete or do not exist."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cluster.files import installing, sweep, write
from cluster.locks import exclusive


def test_an_install_appears_under_its_name_when_it_is_finished(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "thing"
    with installing(target) as scratch:
        scratch.write_text("whole")
        assert not target.exists()
    assert target.read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


def test_a_failed_install_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with installing(tmp_path / "thing") as scratch:
            scratch.write_text("half")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_sweeping_removes_what_killed_installs_left_and_nothing_else(tmp_path: Path) -> None:
    for scratch in ("images/.base.tar.x1", "bin/kube-1/.kube.x2"):
        (tmp_path / scratch).mkdir(parents=True)
        (tmp_path / scratch / "half").touch()
    kept = [tmp_path / "images" / "base.tar", tmp_path / "bin" / "kube-1" / "kube"]
    for path in kept:
        path.touch()
    sweep(tmp_path)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)


def test_sweeping_spares_the_folder_of_a_build_that_runs(tmp_path: Path) -> None:
    scratch = tmp_path / ".build-x1"
    scratch.mkdir()
    with exclusive(scratch):
        sweep(tmp_path)
        assert scratch.exists()
    sweep(tmp_path)
    assert not scratch.exists()


def test_a_secret_is_never_readable_by_others(tmp_path: Path) -> None:
    path = write(tmp_path / "secret", "x", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert write(path, "y", mode=0o600).read_text() == "y"
    assert list(tmp_path.iterdir()) == [path]
