"""The device of the parity tests: the GPU that the engine selects, or the CPU if there is none.

On a GPU the Triton kernels attend and float32 is not rounded. Each of hundreds of tests has its own engine: none of
them measures backends or tunes launches, and graphs are captured only in tests of graphs.
"""

from __future__ import annotations

import pytest
import torch

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention import selection
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.attention.capabilities import Target
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.execution.forward import GraphForwardPass

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Selected as `build_engine` does: CUDA_VISIBLE_DEVICES="" selects the CPU on a machine with a GPU."""
ONLY_ON_A_CPU = "supports only these devices: cpu; the model is on"
"""The refusal of a CPU backend on a GPU."""
BY_HAND = ("test_bfloat16.py", "test_demo_logits.py", "test_llama_cpp.py")
"""These run a decoder on the CPU, without an engine. The engine's bfloat16 is tested in test_device.py."""


GRAPHS = ("test_texts.py", "test_tiers.py")
"""Their engines have graphs."""


def only_on_a_cpu(file: str, device: torch.device = DEVICE) -> str | None:
    """Return why the tests of a file do not apply to a device; None if they do."""
    if device.type == "cpu" or file not in BY_HAND:
        return None
    return "drives a decoder on the CPU by hand: test_device.py has what the engine does on a device"


def refused(error: UsageError, device: torch.device = DEVICE) -> bool:
    """Return whether an engine was refused because its backend only supports CPUs."""
    return device.type != "cpu" and ONLY_ON_A_CPU in str(error)


def ours_first(target: Target) -> list[type[AttentionBackend]]:
    """Return the first backend of the catalogue that supports the target, the Triton kernels if they do.

    There is no second one, so that a failing kernel fails the test, and nothing is measured.
    """
    return [next(backend for backend in BACKENDS.values() if backend.capabilities.refusal(target) is None)]


def exact() -> None:
    """Make float32 products and convolutions exact: without TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def prepare(patch: pytest.MonkeyPatch, file: str) -> None:
    """Configure the engines of a file's tests for the device."""
    patch.setattr(selection, "fastest_first", ours_first)
    patch.setattr("plimsoll_runtime.execution.attention.backends.triton.tuned_configs", lambda cache: {})
    if file not in GRAPHS:
        patch.setattr(GraphForwardPass, "capture_graphs", lambda *arguments, **options: None)
