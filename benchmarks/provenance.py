"""The provenance of results: hardware, versions and command."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from peers import places
from plimsoll_kernels.cpu.library import runnable
from plimsoll_runtime.execution.device.gpus import cpu_name

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("plimsoll-serving", "torch", "transformers", "triton", "numpy")


def provenance() -> dict[str, Any]:
    """Return a record of hardware, versions and command of a measurement."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(["python", _program(), *map(_without_folders, sys.argv[1:])]),
        "cpu": cpu_name(),
        "kind": processor_kind(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": _gpu(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "peers": places.versions(),
    }


def processor_kind() -> str:
    """Return the kind of processor for which figures hold: the best of the kernels' instruction sets that it supports,
    or "none".
    """
    able = runnable()
    return able[-1] if able else "none"


def _program() -> str:
    """Return the running program without absolute folders."""
    return _without_folders(str(Path(sys.argv[0]).resolve()))


def _without_folders(argument: str) -> str:
    """Shorten an absolute path in an argument to its part in the checkout, or to its name."""
    path = Path(argument)
    if not path.is_absolute():
        return argument
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _gpu() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
