"""Where figures come from: without it they mean nothing on another machine."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version

import torch

from plimsoll_runtime.execution.device.gpus import cpu_name
from plimsoll_runtime.version import VERSION


def provenance(device: torch.device) -> dict[str, str | int]:
    """Hardware, versions, command and day. The GPU is the one that was computed on."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(["plimsoll", *sys.argv[1:]]),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name() if device.type == "cuda" else "none",
        "python": platform.python_version(),
        "torch": version("torch"),
        "plimsoll": VERSION,
    }
