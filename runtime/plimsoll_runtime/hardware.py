"""What this runs on, by name: figures that were measured on one machine say nothing about another."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")


def cpu_name() -> str:
    """The processor's model, as far as the machine says."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def device_name(device: torch.device) -> str:
    """The model of a processor or an accelerator."""
    return cpu_name() if device.type == "cpu" else torch.cuda.get_device_name(device)
