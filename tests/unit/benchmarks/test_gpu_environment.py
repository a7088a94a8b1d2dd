"""The environment check of a device's machine, its sanitizer and its attention backends, without a device."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from gpu_support import device
from gpu_support.device import only_on_a_cpu, ours_first, prepare, refused

from gpu import catalogue, environment, sanitizer
from gpu.harness import wheels
from gpu.harness.part import SKIPPED
from gpu.small_ops import OPS
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention import selection
from plimsoll_runtime.execution.attention.backends import triton
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.benchmark import SMALL
from plimsoll_runtime.execution.attention.capabilities import Capabilities, Target
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.execution.forward import GraphForwardPass
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.spec.attention import Alibi, AttentionShape

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=16, scale=0.25)


def test_what_is_missing_is_a_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wheels, "required", lambda: ["pytest", "no-such-package"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(environment, "of_imports", lambda: [])
    monkeypatch.setattr(environment, "of_driver", lambda: [])
    monkeypatch.setattr(sys, "argv", ["environment", "--json", str(tmp_path / "found.json")])
    assert environment.main() == 1
    said = capsys.readouterr().out.splitlines()
    assert "MISSING  no-such-package: not installed" in said
    assert "MISSING  device: torch sees no CUDA or ROCm device" in said
    assert said[-1] == "missing: no-such-package, device"
    states = {line["name"]: line["state"] for line in json.loads((tmp_path / "found.json").read_text())}
    assert states["pytest"] == "ok"
    assert states["no-such-package"] == "MISSING"


def test_what_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "IMPORTED", ("plimsoll_kernels", "no_such_module"))
    good, bad = environment.of_imports()
    assert good.state == "ok"
    assert str(bad) == "MISSING  no_such_module: ModuleNotFoundError: No module named 'no_such_module'"


def test_a_driver_that_answers_and_one_that_fails() -> None:
    def fails(command: Sequence[str]) -> str:
        raise subprocess.CalledProcessError(9, command, stderr="no devices were found")

    assert [line.says for line in environment.of_driver(lambda command: "NVIDIA H100, 580.1")] == [
        "NVIDIA H100, 580.1"
    ] * 2
    assert {line.state for line in environment.of_driver(fails)} == {"MISSING"}


def ended(code: int, out: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, out, "")


@pytest.mark.parametrize(
    ("code", "out", "came"),
    [
        (0, "", "clean"),
        (sanitizer.FOUND, "Invalid __global__ write of size 4 bytes", "found"),
        (1, "decode: differs from the reference by 0.3", "wrong"),
        (255, "========= Error: Device not supported", "refused"),
        (-11, "", "failed"),
    ],
)
def test_what_the_sanitizer_says_of_an_op(code: int, out: str, came: str) -> None:
    found = sanitizer.finding("decode", lambda command: ended(code, out))
    assert found.came == came
    assert list(found.tail) == ([out] if out else [])


def test_an_op_that_takes_too_long_under_the_sanitizer() -> None:
    def late(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(command, 1)

    assert sanitizer.finding("decode", late).came == "failed"


@pytest.mark.parametrize(("code", "out", "result"), [(0, "", 0), (99, "bad", 1), (1, "Device not supported", SKIPPED)])
def test_the_sanitizer_over_all_ops(
    code: int, out: str, result: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        asked.append(command[-1])
        return ended(code, out)

    monkeypatch.setattr(sys, "argv", ["sanitizer", "--json", str(tmp_path / "found.json")])
    assert sanitizer.main(run) == result
    assert asked == (list(OPS)[:1] if result == SKIPPED else list(OPS))
    assert [each["op"] for each in json.loads((tmp_path / "found.json").read_text())] == asked


def test_without_a_sanitizer_it_is_skipped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["sanitizer"])
    assert sanitizer.main() == SKIPPED
    assert capsys.readouterr().out == "compute-sanitizer is not on the PATH\n"


def test_the_table_of_backends() -> None:
    target = Target(CPU, torch.float32, [SHAPE], 16)
    rows = {row.backend: row for row in catalogue.table("tiny", target, SMALL, [*BACKENDS.values(), Wrong])}
    assert rows["torch"].decode_ms is not None
    assert "supports only these devices: cuda, rocm" in rows["triton"].reason
    assert (rows["triton"].failed, rows["wrong"].failed) == (False, True)
    assert "differ from the reference's" in rows["wrong"].reason
    assert rows["reference"].decode_ms is None


class Wrong(ReferenceBackend):
    """Returns twice the correct values."""

    name: ClassVar[str] = "wrong"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def begin(self, batch: Any) -> Any:
        real = super().begin(batch)
        return lambda *arguments: 2 * real(*arguments)


def test_the_shapes_of_the_table_are_served_by_triton() -> None:
    for shape in catalogue.SHAPES.values():
        for block_size in catalogue.BLOCK_SIZES:
            assert BACKENDS["triton"].capabilities.refusal(Target(CUDA, torch.bfloat16, [shape], block_size)) is None


def test_parity_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patched functions exist; Plimsoll's kernels come first; graphs are captured if tests need them."""
    real = GraphForwardPass.capture_graphs
    with pytest.MonkeyPatch.context() as patch:
        prepare(patch, "test_texts.py")
        assert triton.tuned_configs(KvCache([SHAPE], 2, 16, torch.float32, CPU)) == {}
        assert selection.candidates("auto", Target(CUDA, torch.float32, [SHAPE], 16)) == [BACKENDS["triton"]]
        assert GraphForwardPass.capture_graphs is real
        prepare(patch, "test_logits.py")
        assert GraphForwardPass.capture_graphs is not real
    coarse = replace(SHAPE, alibi=Alibi((1.0, 0.5, 0.25, 0.125), coarse=True))
    assert ours_first(Target(CUDA, torch.float32, [coarse], 16)) != [BACKENDS["triton"]]


def test_what_only_a_cpu_has_is_skipped_on_a_device() -> None:
    with pytest.raises(UsageError) as asked:
        selection.candidates("cpu", Target(CUDA, torch.float32, [SHAPE], 16))
    assert refused(asked.value, CUDA)
    assert not refused(asked.value, CPU)
    assert not refused(UsageError("something else"), CUDA)
    assert only_on_a_cpu("test_llama_cpp.py", CUDA)
    assert only_on_a_cpu("test_llama_cpp.py", CPU) is None
    assert only_on_a_cpu("test_logits.py", CUDA) is None
    folder = Path(__file__).parents[2] / "parity"
    assert all((folder / name).is_file() for name in (*device.BY_HAND, *device.GRAPHS))
