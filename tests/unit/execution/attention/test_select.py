"""A backend that was asked for is honoured or refused, never replaced."""

import pytest
import torch

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention import select as module
from plimsoll_runtime.execution.attention.select import Target, select
from plimsoll_runtime.models.spec import AttentionShape

SHAPES = [AttentionShape(heads=4, kv_heads=2, head_dim=64, scale=0.125)]
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def target(device: torch.device, dtype: torch.dtype = torch.float32, block_size: int = 16) -> Target:
    return Target(device, dtype, SHAPES, block_size)


@pytest.mark.parametrize(
    ("name", "device", "chosen"),
    [
        ("auto", CPU, "cpu"),
        ("cpu", CPU, "cpu"),
        ("torch", CPU, "torch"),
        ("reference", CPU, "reference"),
        ("auto", GPU, "triton"),
        ("triton", GPU, "triton"),
        ("reference", GPU, "reference"),
    ],
)
def test_chosen(name: str, device: torch.device, chosen: str) -> None:
    if chosen == "triton":
        pytest.importorskip("triton")
    assert select(name, target(device)).name == chosen


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("triton", CPU, "needs a CUDA or ROCm device, and the model is on cpu"),
        ("torch", GPU, "computes on a CPU, and the model is on cuda"),
        ("cpu", GPU, "computes on a CPU, and the model is on cuda"),
        ("flash", CPU, "flash is unknown; choose auto, cpu, torch, triton, reference"),
    ],
)
def test_refused(name: str, device: torch.device, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        select(name, target(device))


def test_a_gpu_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs the package triton, which is not installed"):
        select("triton", target(GPU))
    with pytest.raises(UsageError, match="no attention backend runs on cuda: triton needs the package"):
        select("auto", target(GPU))


def test_what_the_cpu_kernels_cannot_take_torch_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Target(CPU, torch.float32, [AttentionShape(heads=4, kv_heads=2, head_dim=24, scale=0.2)], 16)
    with pytest.raises(UsageError, match="heads of a multiple of 16 dimensions up to 1024, and the model's have 24"):
        select("cpu", odd)
    with pytest.raises(UsageError, match="needs blocks of a multiple of 16 tokens, and --block-size is 8"):
        select("cpu", target(CPU, block_size=8))
    with pytest.raises(UsageError, match="has no kernels for float16"):
        select("cpu", target(CPU, torch.float16))
    monkeypatch.setattr(module, "kernels", lambda dtype: None)
    with pytest.raises(UsageError, match="has no kernels for float32 that this processor can run"):
        select("cpu", target(CPU))
    assert {select("auto", t).name for t in (odd, target(CPU), target(CPU, torch.float16))} == {"torch"}
