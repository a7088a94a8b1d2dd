"""Which backend computes attention: the best for the device, or the one asked for, honoured or refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.models.spec import AttentionShape


@dataclass(frozen=True, slots=True)
class _Entry:
    """A backend: why it cannot run there (None if it can), and its class, imported only when chosen."""

    why_not: Callable[[torch.device, Sequence[AttentionShape]], str | None]
    load: Callable[[], type[AttentionBackend]]


def select(name: str, device: torch.device, shapes: Sequence[AttentionShape]) -> type[AttentionBackend]:
    """The class of the backend `name`; "auto" takes the first that runs on the device.

    Raises UsageError for an unknown name, and for one that cannot run, with the reason.
    """
    if name == "auto":
        reasons = {n: _ENTRIES[n].why_not(device, shapes) for n in _PREFERENCE}
        chosen = next((n for n, reason in reasons.items() if reason is None), None)
        if chosen is None:
            listed = "; ".join(f"{n} {reason}" for n, reason in reasons.items())
            raise UsageError(f"no attention backend runs on {device.type}: {listed}")
        return _ENTRIES[chosen].load()
    if name not in _ENTRIES:
        raise UsageError(f"--attention-backend {name} is unknown; choose auto, {', '.join(_ENTRIES)}")
    if reason := _ENTRIES[name].why_not(device, shapes):
        raise UsageError(f"--attention-backend {name} cannot be used here: it {reason}; choose another or auto")
    return _ENTRIES[name].load()


def _no_cpu(device: torch.device, shapes: Sequence[AttentionShape]) -> str | None:
    return None if device.type == "cpu" else f"computes on a CPU, and the model is on {device.type}"


def _no_triton(device: torch.device, shapes: Sequence[AttentionShape]) -> str | None:
    if device.type != "cuda":
        return f"needs a CUDA or ROCm device, and the model is on {device.type}"
    if find_spec("triton") is None:
        return "needs the package triton, which is not installed"
    return None


def _always(device: torch.device, shapes: Sequence[AttentionShape]) -> str | None:
    return None


def _cpu() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.cpu.backend import CpuBackend

    return CpuBackend


def _triton() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.triton import TritonBackend

    return TritonBackend


def _reference() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.reference import ReferenceBackend

    return ReferenceBackend


_ENTRIES = {
    "cpu": _Entry(_no_cpu, _cpu),
    "triton": _Entry(_no_triton, _triton),
    "reference": _Entry(_always, _reference),
}
_PREFERENCE = ("triton", "cpu")
