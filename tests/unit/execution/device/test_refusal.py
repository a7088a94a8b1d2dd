"""The message if a GPU is required and none can be used: the cause, and what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plimsoll_runtime.execution.device.diagnostics import DeviceFacts, Gpu
from plimsoll_runtime.execution.device.select import refusal

CUDA = DeviceFacts(built_for=(13, 2), driver_cuda=(13, 0))


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (DeviceFacts(), ["there is no NVIDIA driver here", "spec.resources.accelerator", "--gpus for docker"]),
        (CUDA, ["the NVIDIA driver (CUDA 13.0) finds no usable GPU", "look for Xid", "kubectl cordon"]),
        (replace(CUDA, driver_cuda=(12, 4)), ["built for 13.2: no GPU can be used; update the driver"]),
        (replace(CUDA, visible=""), ["CUDA_VISIBLE_DEVICES='' hides every GPU", "no GPU can be used; unset it"]),
        (replace(CUDA, built_for=None), ["this torch is built without CUDA: no GPU can be used; install"]),
        (replace(CUDA, visible="3", gpus=(Gpu("GPU-a", "H100"),)), ["names GPU 3", "no GPU can be used; nvidia-smi"]),
    ],
    ids=["no-driver", "lost", "old-driver", "hidden", "cpu-build", "named"],
)
def test_what_was_found_and_what_to_do(facts: DeviceFacts, said: list[str]) -> None:
    text = refusal(facts, "No CUDA GPUs are available.")
    began = "--device cuda needs a GPU, but torch finds none: No CUDA GPUs are available; "
    assert text.startswith(began)
    assert [words for words in said if words not in text] == []
    assert text.endswith("; to run models on the CPU, use --device cpu (in a cluster, omit spec.resources.accelerator)")
    assert "models run on the CPU" not in text
