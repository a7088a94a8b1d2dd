"""Peaks are measured once for a machine, and only with enough free memory."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from profiling_support.steps import quicken_probes

from plimsoll_runtime.execution.device import peaks, stored_peaks
from plimsoll_runtime.execution.device.peaks import Peaks

CPU, DTYPE = torch.device("cpu"), torch.float32


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    quicken_probes(monkeypatch)


def test_they_are_kept_by_dtype_and_number_of_processes() -> None:
    assert stored_peaks.stored_peaks(CPU, DTYPE) is None
    found = stored_peaks.measured_peaks(CPU, DTYPE, free=2**40)
    assert found is not None
    assert stored_peaks.stored_peaks(CPU, DTYPE) == found
    assert stored_peaks.stored_peaks(CPU, torch.bfloat16) is None
    assert stored_peaks.stored_peaks(CPU, DTYPE, neighbours=2) is None


def test_the_higher_figures_stay() -> None:
    stored_peaks.store_peaks(CPU, DTYPE, Peaks(bandwidth=10.0, rate=1.0))
    stored_peaks.store_peaks(CPU, DTYPE, Peaks(bandwidth=1.0, rate=10.0))
    assert stored_peaks.stored_peaks(CPU, DTYPE) == Peaks(bandwidth=10.0, rate=10.0)


def test_nothing_is_measured_without_memory(tmp_path: Path) -> None:
    assert stored_peaks.measured_peaks(CPU, DTYPE, free=stored_peaks.MARGIN * peaks.READ_BYTES - 1) is None
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored_peaks.store_peaks(CPU, DTYPE, Peaks(bandwidth=10.0, rate=1.0))
    [file] = (tmp_path / stored_peaks.FOLDER).iterdir()
    file.write_text("{")
    with caplog.at_level(logging.WARNING):
        assert stored_peaks.stored_peaks(CPU, DTYPE) is None
    assert "measuring the peaks of the device again" in caplog.text


def test_a_folder_that_is_not_writable_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert stored_peaks.measured_peaks(CPU, DTYPE, free=2**40) is not None
    assert "set PLIMSOLL_CACHE to a writable folder" in caplog.text
