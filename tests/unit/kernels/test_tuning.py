"""Tuning selects the fastest that runs, measures once, and only loses time if the disk fails."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from plimsoll_kernels.tuning.config import LaunchConfig
from plimsoll_kernels.tuning.key import TuningKey
from plimsoll_kernels.tuning.store import TuningStore
from plimsoll_kernels.tuning.tuner import tuned

KEY = TuningKey("decode", "0f", "NVIDIA H200", {"torch": "2.11", "triton": "3.6"}, {"heads": 32, "dtype": "bfloat16"})
SMALL, MIDDLE, LARGE = (LaunchConfig(16, n, 4, 2) for n in (32, 64, 128))
TIMES = {SMALL: 3.0, MIDDLE: 1.0, LARGE: 2.0}


class Measurer:
    """Known times; a configuration without one does not fit the device."""

    def __init__(self, times: dict[LaunchConfig, float] = TIMES) -> None:
        self.times = times
        self.measured: list[LaunchConfig] = []

    def __call__(self, config: LaunchConfig) -> float:
        self.measured.append(config)
        if config not in self.times:
            raise RuntimeError(f"out of resource: {config.block_n}")
        return self.times[config]


def test_the_fastest_is_measured_once(tmp_path: Path) -> None:
    measure = Measurer()
    assert tuned(KEY, list(TIMES), measure, TuningStore(tmp_path / "new")) == MIDDLE
    assert measure.measured == list(TIMES)
    assert tuned(KEY, list(TIMES), measure, TuningStore(tmp_path / "new")) == MIDDLE
    assert measure.measured == list(TIMES)
    (file,) = (tmp_path / "new").iterdir()
    assert file.name.startswith("decode-")
    assert json.loads(file.read_text())["milliseconds"] == 1.0


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, device="NVIDIA H100"),
        replace(KEY, source="10"),
        replace(KEY, versions={"torch": "2.11", "triton": "3.7"}),
        replace(KEY, shape={"heads": 8, "dtype": "bfloat16"}),
        replace(KEY, kernel="prefill"),
    ],
    ids=["device", "source", "versions", "shape", "kernel"],
)
def test_another_key_is_measured_for_itself(tmp_path: Path, other: TuningKey) -> None:
    store, measure = TuningStore(tmp_path), Measurer()
    tuned(KEY, [SMALL], measure, store)
    tuned(other, [LARGE], measure, store)
    assert measure.measured == [SMALL, LARGE]
    assert store.load(KEY) == SMALL
    assert store.load(other) == LARGE


def test_what_does_not_run_is_passed_over(tmp_path: Path) -> None:
    assert tuned(KEY, list(TIMES), Measurer({LARGE: 9.0}), TuningStore(tmp_path)) == LARGE


def test_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"kernel decode works on NVIDIA H200: .*out of resource: 32; .*: 64"):
        tuned(KEY, [SMALL, MIDDLE], Measurer({}), TuningStore(tmp_path))
    assert not list(tmp_path.iterdir())


def test_what_is_no_candidate_any_more_is_measured_again(tmp_path: Path) -> None:
    store = TuningStore(tmp_path)
    store.save(KEY, LaunchConfig(16, 256, 8, 3), 0.1)
    assert tuned(KEY, [SMALL], Measurer(), store) == SMALL


def read_only(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o500)


def file_in_the_way(folder: Path) -> None:
    folder.write_text("not a folder")


def below_a_file(folder: Path) -> None:
    folder.symlink_to("/dev/null")


@pytest.fixture(params=[read_only, file_in_the_way, below_a_file])
def bad_folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "tuning"
    request.param(folder)
    if request.param is read_only and os.geteuid() == 0:
        # Root may write everywhere, so this raises the system's error for others.
        def refuse(*args: object, **kwargs: object) -> None:
            raise PermissionError(13, "Permission denied", str(folder))

        monkeypatch.setattr("tempfile.mkstemp", refuse)
    yield folder
    if folder.is_dir():
        folder.chmod(0o700)


def test_a_bad_folder_costs_one_warning(bad_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, measure = TuningStore(bad_folder), Measurer()
    with caplog.at_level(logging.WARNING):
        assert tuned(KEY, list(TIMES), measure, store) == MIDDLE
        assert tuned(replace(KEY, kernel="prefill"), list(TIMES), measure, store) == MIDDLE
    assert len(caplog.records) == 1
    assert "tuning" in caplog.text


def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with caplog.at_level(logging.WARNING):
        assert tuned(KEY, list(TIMES), Measurer(), TuningStore(tmp_path)) == MIDDLE
    assert "No space left on device" in caplog.text
    assert "the next start tunes again" in caplog.text
    assert not list(tmp_path.iterdir())


def cut(text: str) -> str:
    return text[: len(text) // 2]


def of_another(text: str) -> str:
    return text.replace("H200", "H100")


def impossible(text: str) -> str:
    return text.replace('"num_warps": 4', '"num_warps": 3')


@pytest.mark.parametrize("spoil", [cut, of_another, impossible])
def test_a_file_that_cannot_be_read_is_written_anew(
    tmp_path: Path, spoil: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    tuned(KEY, list(TIMES), Measurer(), TuningStore(tmp_path))
    (file,) = tmp_path.iterdir()
    file.write_text(spoil(file.read_text()))
    measure = Measurer()
    with caplog.at_level(logging.WARNING):
        assert tuned(KEY, list(TIMES), measure, TuningStore(tmp_path)) == MIDDLE
    assert measure.measured
    assert "tuning again" in caplog.text
    assert TuningStore(tmp_path).load(KEY) == MIDDLE


@pytest.mark.parametrize(
    ("values", "message"),
    [((12, 64, 4, 2), "block_m is 12"), ((16, 64, 0, 2), "num_warps is 0"), ((16, 64, 4, 0), "at least 1")],
)
def test_configurations_that_cannot_be(values: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LaunchConfig(*values)
