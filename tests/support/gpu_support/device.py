"""Where the parity tests compute: on the GPU that the engine takes by itself, or on the CPU where there is none.

On a GPU our kernels attend and float32 is not rounded. Hundreds of tests have an engine each: none of them measures
backends or tunes launches, and graphs are captured only where tests are about them.
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
"""As `build_engine` chooses it: CUDA_VISIBLE_DEVICES="" has everything computed on the CPU of a machine with a GPU."""
ONLY_ON_A_CPU = "supports only these devices: cpu; the model is on"
"""What a backend is refused with on a GPU that it was not made for."""
BY_HAND = ("test_bfloat16.py", "test_demo_logits.py", "test_llama_cpp.py")
"""These drive a decoder on the CPU, without an engine. The engine's bfloat16 is in test_device.py."""


GRAPHS = ("test_texts.py", "test_tiers.py")
"""Their engines have graphs."""


def only_on_a_cpu(file: str, device: torch.device = DEVICE) -> str | None:
    """Why the tests of a file say nothing about a device; None if they do."""
    if device.type == "cpu" or file not in BY_HAND:
        return None
    return "drives a decoder on the CPU by hand: test_device.py has what the engine does on a device"


def refused(error: UsageError, device: torch.device = DEVICE) -> bool:
    """Whether an engine was asked for a backend that a CPU alone has."""
    return device.type != "cpu" and ONLY_ON_A_CPU in str(error)


def ours_first(target: Target) -> list[type[AttentionBackend]]:
    """In place of the fastest: the first of the catalogue, which is Triton's kernels where they can serve the target.

    It is one alone, so that a kernel that fails fails the test; and no time goes into measuring the others.
    """
    return [next(backend for backend in BACKENDS.values() if backend.capabilities.refusal(target) is None)]


def exact() -> None:
    """From now on products and convolutions of float32 round nothing to TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def prepare(patch: pytest.MonkeyPatch, file: str) -> None:
    """Have the engines of a file's tests compute as they are to on a device."""
    patch.setattr(selection, "fastest_first", ours_first)
    patch.setattr("plimsoll_runtime.execution.attention.backends.triton.tuned_configs", lambda cache: {})
    if file not in GRAPHS:
        patch.setattr(GraphForwardPass, "capture_graphs", lambda *arguments, **options: None)
