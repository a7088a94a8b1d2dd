"""Reads the facts of GPUs from torch, the environment and the driver, and the names of devices and CPU."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import torch

from plimsoll_runtime.execution.device.diagnostics import DeviceFacts, Gpu, Holder, UsedDevice, findings

VISIBLE = "CUDA_VISIBLE_DEVICES"
SMI_SECONDS = 10.0
"""Seconds after which nvidia-smi is stopped: if a GPU is lost, it may never return."""
MIB = 2**20

logger = logging.getLogger(__name__)


def log_findings() -> tuple[str, ...]:
    """Log the findings about this machine's GPUs and return their texts."""
    found = findings(read_facts())
    for each in found:
        logger.log(logging.WARNING if each.serious else logging.INFO, "%s", each.text)
    return tuple(each.text for each in found)


def read_facts(environment: Mapping[str, str] = os.environ) -> DeviceFacts:
    """Return the facts; unknown ones are None. Raises CUDA's error if the device has failed.

    nvidia-smi reads the driver, which takes a second if nothing else uses the GPU. So it runs only if CUDA finds no
    GPU, if several are named, or if another process holds memory.
    """
    visible, used = environment.get(VISIBLE), _used()
    ask = used is None or used.held > 0 or (visible is not None and "," in visible)
    return DeviceFacts(
        visible=visible,
        built_for=_parsed(torch.version.cuda),
        driver_cuda=_driver_cuda(),
        used=used,
        gpus=_gpus() if ask else None,
    )


def _used() -> UsedDevice | None:
    if torch.version.cuda is None or not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties()
    free, total = torch.cuda.mem_get_info()
    return UsedDevice(
        name=properties.name,
        uuid=f"GPU-{properties.uuid}",
        capability=(properties.major, properties.minor),
        total=total,
        free=free + torch.cuda.memory_reserved(),
    )


def _driver_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver supports, (12, 4) for its number 12040; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(number)) != 0 or not number.value:
        return None
    return number.value // 1000, number.value % 1000 // 10


def _parsed(version: str | None) -> tuple[int, int] | None:
    if version is None:
        return None
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def _gpus() -> tuple[Gpu, ...] | None:
    found = _smi("--query-gpu=uuid,mig.mode.current,name")
    apps = _smi("--query-compute-apps=gpu_uuid,pid,used_memory,process_name") if found else []
    return None if found is None else gpus_of(found, apps or [])


def gpus_of(found: Sequence[Sequence[str]], apps: Sequence[Sequence[str]]) -> tuple[Gpu, ...]:
    """Return GPUs from nvidia-smi's rows (uuid, MIG, name) and (GPU uuid, pid, MiB, process name). This process is no
    holder; a size of "[N/A]" counts as 0.
    """
    holders: dict[str, list[Holder]] = {}
    for uuid, pid, mib, name in apps:
        size = int(mib) * MIB if mib.isdecimal() else 0
        if int(pid) != os.getpid():
            holders.setdefault(uuid, []).append(Holder(int(pid), name, size, _is_sibling(int(pid))))
    return tuple(Gpu(uuid, name, mig == "Enabled", tuple(holders.get(uuid, ()))) for uuid, mig, name in found)


def _is_sibling(pid: int) -> bool:
    """Return whether this process and that one have the same parent; False for a process of another container."""
    try:
        return psutil.Process(pid).ppid() == os.getppid()
    except psutil.Error:
        return False


def _smi(query: str) -> list[list[str]] | None:
    """Return nvidia-smi's rows; None if it is missing or fails."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        done = subprocess.run(
            [command, query, "--format=csv,noheader,nounits"],
            check=False,
            capture_output=True,
            text=True,
            timeout=SMI_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("nvidia-smi failed: %s", error)
        return None
    if done.returncode != 0:
        logger.warning("nvidia-smi failed with exit code %d: %s", done.returncode, (done.stdout + done.stderr).strip())
        return None
    commas, lines = query.count(","), done.stdout.splitlines()
    return [[cell.strip() for cell in line.split(",", commas)] for line in lines if line.strip()]


CPU_INFO = Path("/proc/cpuinfo")


def cpu_name() -> str:
    """Return the processor's model, or the machine's architecture if the model is unknown."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def device_name(device: torch.device) -> str:
    """Return the model of a processor or an accelerator."""
    return cpu_name() if device.type == "cpu" else torch.cuda.get_device_name(device)
