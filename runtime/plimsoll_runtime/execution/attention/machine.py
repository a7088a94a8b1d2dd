"""The machine's properties that attention backends depend on: the GPU's compute capability and installed libraries."""

from __future__ import annotations

import re
from importlib.util import find_spec

import torch


def capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of an NVIDIA GPU; (0, 0) if there is none."""
    return torch.cuda.get_device_capability(device) if torch.cuda.is_available() else (0, 0)


def installed(library: str) -> str | None:
    """Return the version of "torch" or "cudnn", "" for another library that can be imported; None if it is not
    installed.
    """
    if library == "torch":
        return torch.__version__
    if library == "cudnn":
        # For example 92400 for 9.24.0.
        number: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return None if number is None else f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return "" if find_spec(library) else None


def release(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version, to compare: (2, 11, 0) for "2.11.0+cu129"."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
