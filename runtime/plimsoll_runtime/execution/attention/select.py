"""Which backend computes attention: the best for the device, or the one asked for, honoured or refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from plimsoll_kernels.cpu.library import kernels
from plimsoll_kernels.cpu.step import MAX_HEAD_DIM, SUB_BLOCK
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.models.spec import AttentionShape


@dataclass(frozen=True, slots=True)
class Target:
    """What attention is to be computed for."""

    device: torch.device
    dtype: torch.dtype
    shapes: Sequence[AttentionShape]
    block_size: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """A backend: why it cannot run there (None if it can), and its class, imported only when chosen."""

    why_not: Callable[[Target], str | None]
    load: Callable[[], type[AttentionBackend]]


def select(name: str, target: Target) -> type[AttentionBackend]:
    """The class of the backend `name`; "auto" takes the first that can serve the target.

    Raises UsageError for an unknown name, and for one that cannot run, with the reason.
    """
    if name == "auto":
        reasons = {n: _ENTRIES[n].why_not(target) for n in _PREFERENCE}
        chosen = next((n for n, reason in reasons.items() if reason is None), None)
        if chosen is None:
            listed = "; ".join(f"{n} {reason}" for n, reason in reasons.items())
            raise UsageError(f"no attention backend runs on {target.device.type}: {listed}")
        return _ENTRIES[chosen].load()
    if name not in _ENTRIES:
        raise UsageError(f"--attention-backend {name} is unknown; choose auto, {', '.join(_ENTRIES)}")
    if reason := _ENTRIES[name].why_not(target):
        raise UsageError(f"--attention-backend {name} cannot be used here: it {reason}; choose another or auto")
    return _ENTRIES[name].load()


def _no_cpu(target: Target) -> str | None:
    """Our kernels take what they were compiled for, and shapes that fill their vectors."""
    if reason := _no_torch(target):
        return reason
    if target.block_size % SUB_BLOCK:
        return f"needs blocks of a multiple of {SUB_BLOCK} tokens, and --block-size is {target.block_size}"
    odd = sorted({s.head_dim for s in target.shapes if s.head_dim % SUB_BLOCK or s.head_dim > MAX_HEAD_DIM})
    if odd:
        return (
            f"takes heads of a multiple of {SUB_BLOCK} dimensions up to {MAX_HEAD_DIM}, and the model's have {odd[0]}"
        )
    if kernels(target.dtype) is None:
        dtype = str(target.dtype).removeprefix("torch.")
        return f"has no kernels for {dtype} that this processor can run, or they were not built"
    return None


def _no_torch(target: Target) -> str | None:
    if target.device.type == "cpu":
        return None
    return f"computes on a CPU, and the model is on {target.device.type}"


def _no_triton(target: Target) -> str | None:
    if target.device.type != "cuda":
        return f"needs a CUDA or ROCm device, and the model is on {target.device.type}"
    if find_spec("triton") is None:
        return "needs the package triton, which is not installed"
    return None


def _always(target: Target) -> str | None:
    return None


def _cpu() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.cpu.backend import CpuBackend

    return CpuBackend


def _torch() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.gathered.backend import GatheredBackend

    return GatheredBackend


def _triton() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.triton import TritonBackend

    return TritonBackend


def _reference() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.reference import ReferenceBackend

    return ReferenceBackend


_ENTRIES = {
    "cpu": _Entry(_no_cpu, _cpu),
    "torch": _Entry(_no_torch, _torch),
    "triton": _Entry(_no_triton, _triton),
    "reference": _Entry(_always, _reference),
}
_PREFERENCE = ("triton", "cpu", "torch")
