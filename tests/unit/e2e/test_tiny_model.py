"""A model's folder is complete or does not exist, even if several scenarios create it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import pool, tiny_model
from harness.tiny_model import write_tiny_model


def files(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_it_is_written_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def write(folder: Path, seed: int, *_: Any, **__: Any) -> None:
        assert not (tmp_path / "model").exists()
        folder.mkdir()
        (folder / "weights").write_text(str(seed))
        written.append(seed)

    monkeypatch.setattr(tiny_model, "_write", write)
    write_tiny_model(tmp_path / "model", seed=3)
    write_tiny_model(tmp_path / "model", seed=4)
    assert written == [3]
    assert files(tmp_path) == {"model/weights": "3"}


def test_of_two_that_write_it_at_once_one_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(folder: Path, *_: Any, **__: Any) -> None:
        folder.mkdir()
        (folder / "weights").write_text("mine")
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "weights").write_text("the other's")

    monkeypatch.setattr(tiny_model, "_write", write)
    write_tiny_model(tmp_path / "model")
    assert files(tmp_path) == {"model/weights": "the other's"}


def test_half_a_model_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(folder: Path, *_: Any, **__: Any) -> None:
        folder.mkdir()
        (folder / "weights").write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(tiny_model, "_write", write)
    with pytest.raises(OSError, match="no space left"):
        write_tiny_model(tmp_path / "model")
    assert files(tmp_path) == {}


def test_scenarios_share_files_by_number_and_no_names() -> None:
    one, other = (pool.model(pool.names(scenario, 3)[2]) for scenario in ("lost", "killed"))
    assert one["metadata"]["name"] == "lost-2"
    assert other["metadata"]["name"] == "killed-2"
    assert one["spec"]["model"] == other["spec"]["model"] == {"source": "pvc://tiny-model/tiny-2"}
