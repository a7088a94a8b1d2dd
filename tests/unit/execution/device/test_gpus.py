"""The outputs of CUDA and nvidia-smi become facts; missing ones are omitted."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from plimsoll_runtime.execution.device import gpus
from plimsoll_runtime.execution.device.diagnostics import DeviceFacts, Gpu, Holder, UsedDevice

GIB = 2**30
SMI = """#!/bin/sh
case "$1" in
--query-gpu=*) printf 'GPU-aa11, Disabled, NVIDIA H100\\nGPU-bb22, [N/A], Tesla T4\\n' ;;
*) printf 'GPU-aa11, 999999999, 2048, python3, with commas\\nGPU-aa11, 999999998, [N/A], [Not Found]\\n' ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake nvidia-smi as the only command on the path."""
    path = tmp_path / "nvidia-smi"
    path.write_text(SMI)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    return path


def use(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """Let CUDA have a device with `free` bytes free."""
    properties = SimpleNamespace(name="NVIDIA H100", uuid="aa11", major=9, minor=0)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: GIB)


def test_of_a_machine_without_a_gpu_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    assert gpus.read_facts({}) == DeviceFacts(built_for=(13, 2), driver_cuda=gpus._driver_cuda())


@pytest.mark.parametrize(("number", "version"), [(12040, (12, 4)), (13020, (13, 2)), (0, None)])
def test_the_drivers_version(monkeypatch: pytest.MonkeyPatch, number: int, version: tuple[int, int] | None) -> None:
    def tell(found: object) -> int:
        found._obj.value = number  # type: ignore[attr-defined]
        return 0

    asked: list[str] = []

    def load(path: str) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(cuDriverGetVersion=tell)

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert gpus._driver_cuda() == version
    assert asked == ["libcuda.so.1"]


def test_the_device_that_is_used(monkeypatch: pytest.MonkeyPatch, smi: Path) -> None:
    """Memory that this process has reserved counts as free, and nvidia-smi does not run if all is well."""
    use(monkeypatch, 78 * GIB)
    facts = gpus.read_facts({"CUDA_VISIBLE_DEVICES": "0"})
    assert facts.used == UsedDevice("NVIDIA H100", "GPU-aa11", (9, 0), 80 * GIB, 79 * GIB)
    assert (facts.visible, facts.built_for, facts.gpus) == ("0", (13, 2), None)


def test_the_driver_is_asked_who_holds_memory(monkeypatch: pytest.MonkeyPatch, smi: Path) -> None:
    use(monkeypatch, 10 * GIB)
    holders = (Holder(999999999, "python3, with commas", 2 * GIB), Holder(999999998, "[Not Found]", 0))
    assert gpus.read_facts({}).gpus == (Gpu("GPU-aa11", "NVIDIA H100", False, holders), Gpu("GPU-bb22", "Tesla T4"))


def test_what_there_is_to_say_is_in_the_log_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpus, "read_facts", lambda: DeviceFacts(used=UsedDevice("T4", "a", (7, 5), GIB, GIB)))
    with caplog.at_level(logging.INFO):
        (told,) = gpus.log_findings()
    assert told.startswith("T4 (compute capability 7.5) has no bfloat16")
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(logging.INFO, told)]


def test_siblings_and_this_process_are_told_apart() -> None:
    sibling = subprocess.Popen(["sleep", "60"])
    try:
        rows = [["a", str(os.getpid()), "1", "me"], ["a", str(os.getppid()), "1", "mine"]]
        (gpu,) = gpus.gpus_of([["a", "Enabled", "n"]], rows)
        assert gpu == Gpu("a", "n", True, (Holder(os.getppid(), "mine", 2**20),))
        assert not gpus._is_sibling(sibling.pid)
        assert gpus._is_sibling(os.getpid())
    finally:
        sibling.kill()
        sibling.wait()


@pytest.mark.parametrize("script", ["#!/bin/sh\necho 'GPU is lost'; exit 15\n", "no script"], ids=["fails", "unusable"])
def test_a_driver_that_cannot_answer_is_told(smi: Path, script: str, caplog: pytest.LogCaptureFixture) -> None:
    smi.write_text(script)
    if script == "no script":
        smi.write_bytes(b"\x7fELF")
    assert gpus._gpus() is None
    assert "nvidia-smi" in caplog.text


def test_a_driver_that_never_answers_is_not_waited_for(
    smi: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    smi.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(gpus, "SMI_SECONDS", 0.1)
    assert gpus._gpus() is None
    assert "nvidia-smi failed: " in caplog.text


def test_what_is_amiss_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, smi: Path, caplog: pytest.LogCaptureFixture
) -> None:
    use(monkeypatch, 10 * GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (9 * GIB, 20 * GIB))
    with caplog.at_level(logging.INFO):
        gpus.log_findings()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "pid 999999999 (python3, with commas) 2.0 GiB" in record.getMessage()
