"""A requested backend is used or refused, never replaced."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention import machine as module
from plimsoll_runtime.execution.attention.backends import cpu as cpu_module
from plimsoll_runtime.execution.attention.capabilities import Target
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.execution.attention.selection import backend_called, candidates, select
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
        ("triton", CPU, "only these devices: cuda, rocm; the model is on cpu"),
        ("flashinfer", CPU, "only these devices: cuda; the model is on cpu"),
        ("flash-attn", CPU, "only these devices: cuda, rocm; the model is on cpu"),
        ("flash-attn-3", CPU, "only these devices: cuda; the model is on cpu"),
        ("cudnn", CPU, "only these devices: cuda; the model is on cpu"),
        ("cudnn-paged", GPU, "these dtypes: bfloat16, float16; the model runs in float32"),
        ("torch-flash", GPU, "these dtypes: bfloat16, float16; the model runs in float32"),
        ("flashinfer", GPU, "these dtypes: bfloat16, float16; the model runs in float32"),
        ("torch", GPU, "only these devices: cpu; the model is on cuda"),
        ("cpu", GPU, "only these devices: cpu; the model is on cuda"),
        ("flash", CPU, "flash is unknown; choose auto, cpu, torch, triton, flashinfer, flash-attn-3, flash-attn, "),
    ],
)
def test_refused(name: str, device: torch.device, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hopper(monkeypatch)
    with pytest.raises(UsageError, match=message):
        select(name, target(device))


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("triton", "triton"),
        ("flashinfer", "flashinfer"),
        ("flash-attn", "flash_attn"),
        ("flash-attn-3", "flash_attn_interface"),
    ],
)
def test_a_gpu_without_the_package(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hopper(monkeypatch)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"needs {package}, which is not installed"):
        select(name, target(GPU, torch.bfloat16, 256))


def test_what_the_packages_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    with pytest.raises(UsageError, match="these block sizes: multiples of 256; --block-size is 16"):
        select("flash-attn", target(GPU, torch.bfloat16))
    odd = [AttentionShape(heads=4, kv_heads=2, head_dim=96, scale=0.1)]
    with pytest.raises(UsageError, match="these head sizes: 64, 128, 256; the model has 96"):
        select("flashinfer", Target(GPU, torch.bfloat16, odd, 16))
    huge = [AttentionShape(heads=4, kv_heads=2, head_dim=512, scale=0.1)]
    with pytest.raises(UsageError, match="these head sizes: multiples of 8 up to 256; the model has 512"):
        select("flash-attn", Target(GPU, torch.bfloat16, huge, 256))
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with pytest.raises(UsageError, match="these devices: cuda; the model is on rocm"):
        select("flashinfer", target(GPU, torch.bfloat16))


@dataclass(frozen=True)
class Machine:
    """A GPU with its libraries, and the head size and block size of a model."""

    capability: tuple[int, int] = (9, 0)
    cudnn: int | None = 92600
    torch: str = "2.15.0+cu132"
    flash: bool = True
    hip: str | None = None
    head_dim: int = 128
    block_size: int = 16


OLD = Machine(cudnn=90800, torch="2.11.0")
CUDNN_NAMES = ("flash-attn-3", "cudnn-paged", "cudnn", "torch-flash")
WHY_NOT = {
    "hopper": (Machine(), {}),
    "blackwell": (Machine(capability=(10, 0)), {"flash-attn-3": "compute capabilities: 9; the GPU has 10.0"}),
    "newer": (
        Machine(capability=(12, 0)),
        {"flash-attn-3": "the GPU has 12.0", "cudnn-paged": "compute capabilities: 9, 10; the GPU has 12.0"},
    ),
    "ampere": (
        Machine(capability=(8, 0)),
        dict.fromkeys(("flash-attn-3", "cudnn-paged"), "capabilities: 9.*; the GPU has 8.0"),
    ),
    "turing": (
        Machine(capability=(7, 5)),
        dict.fromkeys(CUDNN_NAMES, "capabilities: (8 or more|9|9, 10); the GPU has 7.5"),
    ),
    "rocm": (Machine(hip="7.0"), dict.fromkeys(CUDNN_NAMES, "devices: cuda; the model is on rocm")),
    "old": (OLD, {"cudnn-paged": "needs torch>=2.15, and 2.11.0 is installed"}),
    "old-cudnn": (replace(OLD, torch="2.16.1"), {"cudnn-paged": "needs cudnn>=9.24, and 9.8.0 is installed"}),
    "without": (
        Machine(cudnn=None, flash=False),
        {
            **dict.fromkeys(("cudnn-paged", "cudnn"), "needs cudnn, which is not installed"),
            "torch-flash": "built with FlashAttention",
        },
    ),
    "blocks": (Machine(block_size=48), {"cudnn-paged": "block sizes: 8, 16, 32, 64, 128, 256; --block-size is 48"}),
    "wide": (Machine(head_dim=256), {"cudnn-paged": "multiples of 8 up to 128; the model has 256"}),
    "wide-before": (replace(OLD, head_dim=256), {"cudnn-paged": "up to 128", "cudnn": "above 128 only with"}),
    "wide-ampere": (
        Machine(capability=(8, 0), head_dim=256),
        {"cudnn": "above 128 only with", **dict.fromkeys(("flash-attn-3", "cudnn-paged"), "the GPU has 8.0")},
    ),
    "odd": (Machine(head_dim=100), dict.fromkeys(CUDNN_NAMES, "multiples of 8 up to .* has 100")),
}
"""The refusals of backends on each machine."""


@pytest.mark.parametrize("case", WHY_NOT)
def test_what_a_gpu_and_its_libraries_allow(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, expected = WHY_NOT[case]
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    monkeypatch.setattr(module, "capability", lambda device: machine.capability)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: machine.cudnn)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: machine.flash)
    monkeypatch.setattr(torch, "__version__", machine.torch)
    monkeypatch.setattr(torch.version, "hip", machine.hip)
    shapes = [AttentionShape(heads=4, kv_heads=2, head_dim=machine.head_dim, scale=0.1)]
    there = Target(GPU, torch.bfloat16, shapes, machine.block_size)
    found = {name: reason for name in CUDNN_NAMES if (reason := BACKENDS[name].capabilities.refusal(there)) is not None}
    assert found.keys() == expected.keys()
    assert all(re.search(expected[name], reason) for name, reason in found.items())


def test_windows_and_soft_caps(monkeypatch: pytest.MonkeyPatch) -> None:
    hopper(monkeypatch)
    able = {}
    for what, shape in (("window", replace(SHAPES[0], window=99)), ("softcap", replace(SHAPES[0], softcap=9.0))):
        there = Target(GPU, torch.bfloat16, [SHAPES[0], shape], 256)
        able[what] = {name for name in CUDNN_NAMES if BACKENDS[name].capabilities.refusal(there) is None}
    assert able == {"window": {"flash-attn-3", "torch-flash"}, "softcap": {"flash-attn-3"}}
    windowed = Target(GPU, torch.bfloat16, [replace(SHAPES[0], window=99)], 16)
    assert (
        BACKENDS["cudnn"].capabilities.refusal(windowed)
        == "does not support sliding-window attention, which the model has"
    )


def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with all packages and libraries."""
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    monkeypatch.setattr(module, "capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92600)
    monkeypatch.setattr(torch.version, "hip", None)


def test_one_that_is_made_of_two_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name can be requested, and an image of a model's weights stores it."""
    hopper(monkeypatch)
    pair = backend_called("cudnn+sdpa")
    assert (pair.name, backend_called("sdpa").name) == ("cudnn+sdpa", "sdpa")
    assert pair.capabilities.refusal(target(GPU, torch.bfloat16)) is None
    assert [found.name for found in candidates("cudnn+sdpa", target(GPU, torch.bfloat16))] == ["cudnn+sdpa"]
    for name, device, message in (
        ("sdpa+cudnn", GPU, "these dtypes: bfloat16, float16; the model runs in float32"),
        ("sdpa+torch", CPU, "divides steps between two backends, which is not supported on a CPU"),
        ("sdpa+magic", GPU, "unknown"),
        ("sdpa+cudnn+sdpa", GPU, "unknown"),
    ):
        with pytest.raises(UsageError, match=message):
            select(name, target(device))


def test_soft_caps_are_not_for_sdpa() -> None:
    capped = [AttentionShape(heads=4, kv_heads=2, head_dim=64, scale=0.1, softcap=30.0)]
    with pytest.raises(UsageError, match="it does not support soft caps of scores, which the model has"):
        select("sdpa", Target(CPU, torch.float32, capped, 16))


def test_heads_of_several_sizes_are_not_for_flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of several head sizes is not a whole number of heads."""
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.version, "hip", None)
    alike = [AttentionShape(4, 1, size, 0.1) for size in (64, 64)]
    mixed = [AttentionShape(4, 1, size, 0.1) for size in (64, 256)]
    refusal = BACKENDS["flashinfer"].capabilities.refusal
    assert refusal(Target(torch.device("cuda"), torch.bfloat16, alike, 16)) is None
    assert "only one head size in a model" in (refusal(Target(torch.device("cuda"), torch.bfloat16, mixed, 16)) or "")


KINDS: Mapping[str, tuple[dict[str, Any], set[str], str]] = {
    "chunk": (
        {"chunk": 64},
        {"cpu", "torch", "triton", "sdpa", "reference"},
        "not support chunked attention",
    ),
    "alibi": ({"alibi": Alibi((0.5,) * 4)}, {"cpu", "torch", "triton", "sdpa", "reference"}, "not support ALiBi"),
    "coarse": (
        {"alibi": Alibi((0.5,) * 4, coarse=True)},
        {"cpu", "torch", "sdpa", "reference"},
        "ALiBi that is rounded to bfloat16",
    ),
    "latent": (
        {"latent": True, "kv_heads": 1},
        {"cpu", "torch", "triton", "sdpa", "reference"},
        "not support latent attention",
    ),
    "latents": ({"latent": True}, {"torch", "sdpa", "reference"}, "latent attention with several key heads"),
    "latent-window": (
        {"latent": True, "kv_heads": 1, "window": 9},
        {"cpu", "torch", "sdpa", "reference"},
        "latent attention with other features",
    ),
    "sinks": ({"sinks": True}, {"cpu", "torch", "triton", "sdpa", "reference"}, "not support attention sinks"),
}
"""Features of shapes, the backends that have them, and the refusals of the others."""


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_computes_less_than_a_shape_says(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    says, able, message = KINDS[kind]
    hopper(monkeypatch)
    plain = AttentionShape(heads=4, kv_heads=2, head_dim=64, scale=0.1)
    found = set()
    for name, backend in BACKENDS.items():
        device = CPU if name in ("cpu", "torch") else GPU
        dtype = torch.float32 if device is CPU else torch.bfloat16
        reasons = [
            backend.capabilities.refusal(Target(device, dtype, [plain, shape], 256))
            for shape in (plain, replace(plain, **says))
        ]
        assert reasons[0] is None, (name, reasons)
        if reasons[1] is None:
            found.add(name)
        else:
            assert re.search(message, reasons[1])
    assert found == able


def test_what_the_cpu_kernels_cannot_take_torch_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Target(CPU, torch.float32, [AttentionShape(heads=4, kv_heads=2, head_dim=24, scale=0.2)], 16)
    with pytest.raises(UsageError, match="head sizes: multiples of 16 up to 1024; the model has 24"):
        select("cpu", odd)
    with pytest.raises(UsageError, match="block sizes: multiples of 16; --block-size is 8"):
        select("cpu", target(CPU, block_size=8))
    with pytest.raises(UsageError, match="dtypes: float32, bfloat16; the model runs in float16"):
        select("cpu", target(CPU, torch.float16))
    monkeypatch.setattr(cpu_module, "kernels", lambda dtype: None)
    with pytest.raises(UsageError, match="has no kernels for float32 that this processor can run"):
        select("cpu", target(CPU))
    assert {select("auto", t).name for t in (odd, target(CPU), target(CPU, torch.float16))} <= {"torch", "sdpa"}
