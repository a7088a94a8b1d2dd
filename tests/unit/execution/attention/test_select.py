"""A backend that was asked for is honoured or refused, never replaced."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention import catalogue as module
from plimsoll_runtime.execution.attention.catalogue import Target
from plimsoll_runtime.execution.attention.select import candidates, select
from plimsoll_runtime.models.spec.attention import Alibi, AttentionShape

SHAPES = [AttentionShape(heads=4, kv_heads=2, head_dim=64, scale=0.125)]
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))


def target(device: torch.device, dtype: torch.dtype = torch.float32, block_size: int = 16) -> Target:
    return Target(device, dtype, SHAPES, block_size)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("cpu", CPU),
        ("torch", CPU),
        ("sdpa", CPU),
        ("reference", CPU),
        ("triton", GPU),
        ("sdpa", GPU),
        ("reference", GPU),
    ],
)
def test_chosen(name: str, device: torch.device) -> None:
    if name == "triton":
        pytest.importorskip("triton")
    assert [backend.name for backend in candidates(name, target(device))] == [name]
    assert select(name, target(device)).name == name


def test_our_kernels_are_the_fastest_on_a_cpu() -> None:
    assert select("auto", target(CPU)).name == "cpu"


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("triton", CPU, "needs a CUDA or ROCm device, and the model is on cpu"),
        ("flashinfer", CPU, "needs a GPU, and the model is on cpu"),
        ("flash-attn", CPU, "needs a GPU, and the model is on cpu"),
        ("flashinfer", GPU, "computes in bfloat16 and float16, and the model runs in float32"),
        ("torch", GPU, "computes on a CPU, and the model is on cuda"),
        ("cpu", GPU, "computes on a CPU, and the model is on cuda"),
        ("flash", CPU, "flash is unknown; choose auto, cpu, torch, triton, flashinfer, flash-attn, sdpa, reference"),
    ],
)
def test_refused(name: str, device: torch.device, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        select(name, target(device))


@pytest.mark.parametrize(
    ("name", "package"), [("triton", "triton"), ("flashinfer", "flashinfer"), ("flash-attn", "flash_attn")]
)
def test_a_gpu_without_the_package(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"needs the package {package}, which is not installed"):
        select(name, target(GPU, torch.bfloat16))


def test_what_the_packages_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    with pytest.raises(UsageError, match="needs blocks of 256 tokens, and --block-size is 16"):
        select("flash-attn", target(GPU, torch.bfloat16))
    odd = [AttentionShape(heads=4, kv_heads=2, head_dim=96, scale=0.1)]
    with pytest.raises(UsageError, match="takes heads of 64, 128, 256 dimensions, and the model's have 96"):
        select("flashinfer", Target(GPU, torch.bfloat16, odd, 16))
    huge = [AttentionShape(heads=4, kv_heads=2, head_dim=512, scale=0.1)]
    with pytest.raises(UsageError, match="of a multiple of 8 dimensions up to 256, and the model's have 512"):
        select("flash-attn", Target(GPU, torch.bfloat16, huge, 256))
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with pytest.raises(UsageError, match="needs CUDA, and this is ROCm"):
        select("flashinfer", target(GPU, torch.bfloat16))


def test_soft_caps_are_not_for_sdpa() -> None:
    capped = [AttentionShape(heads=4, kv_heads=2, head_dim=64, scale=0.1, softcap=30.0)]
    with pytest.raises(UsageError, match="it caps no scores, and the model's are"):
        select("sdpa", Target(CPU, torch.float32, capped, 16))


def test_heads_of_several_sizes_are_not_for_flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that holds both is no whole number of the larger ones."""
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.version, "hip", None)
    alike = [AttentionShape(4, 1, size, 0.1) for size in (64, 64)]
    mixed = [AttentionShape(4, 1, size, 0.1) for size in (64, 256)]
    why_not = module.ENTRIES["flashinfer"].why_not
    assert why_not(Target(torch.device("cuda"), torch.bfloat16, alike, 16)) is None
    assert "heads of one size" in (why_not(Target(torch.device("cuda"), torch.bfloat16, mixed, 16)) or "")


KINDS: Mapping[str, tuple[dict[str, Any], set[str], str]] = {
    "chunk": (
        {"chunk": 64},
        {"cpu", "torch", "triton", "sdpa", "reference"},
        "to all before a token, and the model to its ch",
    ),
    "alibi": ({"alibi": Alibi((0.5,) * 4)}, {"cpu", "torch", "triton", "sdpa", "reference"}, "adds no ALiBi to scores"),
    "coarse": (
        {"alibi": Alibi((0.5,) * 4, coarse=True)},
        {"cpu", "torch", "sdpa", "reference"},
        "ALiBi to scores, and the",
    ),
    "latent": (
        {"latent": True, "kv_heads": 1},
        {"cpu", "torch", "triton", "sdpa", "reference"},
        "reads values beside keys, and the model's keys are",
    ),
    "latents": ({"latent": True}, {"torch", "sdpa", "reference"}, "where keys are|values beside keys"),
    "latent-window": (
        {"latent": True, "kv_heads": 1, "window": 9},
        {"cpu", "torch", "sdpa", "reference"},
        "where keys are|values beside keys",
    ),
    "sinks": ({"sinks": True}, {"cpu", "torch", "triton", "sdpa", "reference"}, "has no sinks, and the model has"),
}
"""What a shape says, the backends that have it, and what the others say."""


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_computes_less_than_a_shape_says(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    says, able, message = KINDS[kind]
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.version, "hip", None)
    plain = AttentionShape(heads=4, kv_heads=2, head_dim=64, scale=0.1)
    found = set()
    for name, entry in module.ENTRIES.items():
        device = CPU if name in ("cpu", "torch") else GPU
        dtype = torch.float32 if device is CPU else torch.bfloat16
        reasons = [
            entry.why_not(Target(device, dtype, [plain, shape], 256)) for shape in (plain, replace(plain, **says))
        ]
        assert reasons[0] is None, (name, reasons)
        if reasons[1] is None:
            found.add(name)
        else:
            assert re.search(message, reasons[1])
    assert found == able


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
    assert {select("auto", t).name for t in (odd, target(CPU), target(CPU, torch.float16))} <= {"torch", "sdpa"}
