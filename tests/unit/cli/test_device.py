"""Processes that require a GPU on a machine without one: they exit right away, and say why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from model_support.tiny import make_model, save_model
from server_support.process import serving

NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
"""Hides the GPUs of the machine."""


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_model(make_model("LlamaConfig", {"head_dim": 16}), folder)
    return folder


def run(log: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | NO_GPU | {"PLIMSOLL_TERMINATION_LOG": str(log)}
    command = [sys.executable, "-m", "plimsoll_runtime", *words, "--device", "cuda"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env=environment)


@pytest.mark.long
@pytest.mark.parametrize("command", ["serve", "host"])
def test_a_server_without_its_gpu_ends_with_the_code_of_failed_devices(
    command: str, tiny_model: Path, tmp_path: Path
) -> None:
    options = {"serve": [str(tiny_model)], "host": ["--host-port", "0"]}[command]
    done = run(tmp_path / "log", command, "--port", "0", *options)
    assert done.returncode == 8, done.stderr
    words = (tmp_path / "log").read_text()
    assert words.startswith("device-failed: --device cuda needs a GPU, but torch finds none: ")
    assert words.endswith(
        "; to run models on the CPU, use --device cpu (in a cluster, omit spec.resources.accelerator)"
    )
    assert f"plimsoll: {words.removeprefix('device-failed: ')}" in done.stderr


@pytest.mark.long
def test_a_batch_without_its_gpu_answers_nothing(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "w1 w2"}\n')
    done = run(
        tmp_path / "log", "batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--model", str(tiny_model)
    )
    assert done.returncode == 8, done.stderr
    assert "torch finds none" in done.stderr


@pytest.mark.long
def test_on_the_cpu_it_is_served_all_the_same(tiny_model: Path, tmp_path: Path) -> None:
    with serving(tiny_model, tmp_path / "log", "--device", "cpu") as served:
        assert served.client.completions.create(model="tiny", prompt="w1 w2", max_tokens=2).choices
