"""A backend that was asked for is honoured or refused, never replaced."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention import registry as module
from plimsoll_runtime.execution.attention.registry import Target
from plimsoll_runtime.execution.attention.selection import backend_called, candidates, select, why_not
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
        ("flash-attn-3", CPU, "needs a GPU, and the model is on cpu"),
        ("cudnn", CPU, "needs a GPU, and the model is on cpu"),
        ("cudnn-paged", GPU, "computes in bfloat16 and float16, and the model runs in float32"),
        ("torch-flash", GPU, "computes in bfloat16 and float16, and the model runs in float32"),
        ("flashinfer", GPU, "computes in bfloat16 and float16, and the model runs in float32"),
        ("torch", GPU, "computes on a CPU, and the model is on cuda"),
        ("cpu", GPU, "computes on a CPU, and the model is on cuda"),
        ("flash", CPU, "flash is unknown; choose auto, cpu, torch, triton, flashinfer, flash-attn-3, flash-attn, "),
    ],
)
def test_refused(name: str, device: torch.device, message: str) -> None:
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


@dataclass(frozen=True)
class Machine:
    """A GPU, and the libraries beside it; the head and the block of a model there."""

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
    "blackwell": (Machine(capability=(10, 0)), {"flash-attn-3": "is for Hopper .* newer"}),
    "newer": (
        Machine(capability=(12, 0)),
        {"flash-attn-3": "is for Hopper .* newer", "cudnn-paged": "for Hopper and Blackwell .* newer"},
    ),
    "ampere": (
        Machine(capability=(8, 0)),
        dict.fromkeys(("flash-attn-3", "cudnn-paged"), r"needs Hopper \(.* 9\) or newer, and the device has 8.0"),
    ),
    "turing": (Machine(capability=(7, 5)), dict.fromkeys(CUDNN_NAMES, "or newer, and the device has 7.5")),
    "rocm": (Machine(hip="7.0"), dict.fromkeys(CUDNN_NAMES, "needs CUDA, and this is ROCm")),
    "old": (OLD, {"cudnn-paged": "needs PyTorch 2.15, and this is 2.11.0"}),
    "old-cudnn": (replace(OLD, torch="2.16.1"), {"cudnn-paged": "needs cuDNN 9.24, and this is 90800"}),
    "without": (
        Machine(cudnn=None, flash=False),
        {"cudnn-paged": "needs cuDNN 9.24", "cudnn": "built with cuDNN", "torch-flash": "built with FlashAttention"},
    ),
    "blocks": (Machine(block_size=48), {"cudnn-paged": "needs blocks of a power of two tokens, and .* is 48"}),
    "wide": (Machine(head_dim=256), {"cudnn-paged": "8 dimensions up to 128, and the model's have 256"}),
    "wide-before": (replace(OLD, head_dim=256), {"cudnn-paged": "PyTorch 2.15", "cudnn": "up to 128"}),
    "wide-ampere": (
        Machine(capability=(8, 0), head_dim=256),
        {"cudnn": "up to 128", **dict.fromkeys(("flash-attn-3", "cudnn-paged"), "needs Hopper")},
    ),
    "odd": (Machine(head_dim=100), dict.fromkeys(CUDNN_NAMES, "of a multiple of 8 dimensions up to .* have 100")),
}
"""Of each machine, which of these backends do not serve, and why."""


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
    found = {name: reason for name in CUDNN_NAMES if (reason := module.ENTRIES[name].why_not(there)) is not None}
    assert found.keys() == expected.keys()
    assert all(re.search(expected[name], reason) for name, reason in found.items())


def test_windows_and_soft_caps(monkeypatch: pytest.MonkeyPatch) -> None:
    hopper(monkeypatch)
    able = {}
    for what, shape in (("window", replace(SHAPES[0], window=99)), ("softcap", replace(SHAPES[0], softcap=9.0))):
        there = Target(GPU, torch.bfloat16, [SHAPES[0], shape], 256)
        able[what] = {name for name in CUDNN_NAMES if module.ENTRIES[name].why_not(there) is None}
    assert able == {"window": {"flash-attn-3", "torch-flash"}, "softcap": {"flash-attn-3"}}
    windowed = Target(GPU, torch.bfloat16, [replace(SHAPES[0], window=99)], 16)
    assert module.ENTRIES["cudnn"].why_not(windowed) == "has no windows, and the model has"


def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with all packages and libraries."""
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    monkeypatch.setattr(module, "capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92600)
    monkeypatch.setattr(torch.version, "hip", None)


def test_one_that_is_made_of_two_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """By which it may be asked for, and an image of a model's weights remembers it."""
    hopper(monkeypatch)
    pair = backend_called("cudnn+sdpa")
    assert (pair.name, backend_called("sdpa").name) == ("cudnn+sdpa", "sdpa")
    assert why_not("cudnn+sdpa", target(GPU, torch.bfloat16)) is None
    assert [found.name for found in candidates("cudnn+sdpa", target(GPU, torch.bfloat16))] == ["cudnn+sdpa"]
    for name, device, message in (
        ("sdpa+cudnn", GPU, "computes in bfloat16 and float16, and the model runs in float32"),
        ("sdpa+torch", CPU, "divides steps between two, and on a CPU one computes all"),
        ("sdpa+magic", GPU, "unknown"),
        ("sdpa+cudnn+sdpa", GPU, "unknown"),
    ):
        with pytest.raises(UsageError, match=message):
            select(name, target(device))


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
        "where keys are|values beside keys|has no windows",
    ),
    "sinks": ({"sinks": True}, {"cpu", "torch", "triton", "sdpa", "reference"}, "has no sinks, and the model has"),
}
"""What a shape says, the backends that have it, and what the others say."""


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_computes_less_than_a_shape_says(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    says, able, message = KINDS[kind]
    hopper(monkeypatch)
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
