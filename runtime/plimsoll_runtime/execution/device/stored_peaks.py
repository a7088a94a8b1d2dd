"""Keeps a device's measured peaks on disk, so that only the first start of an engine on a machine measures them."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import msgspec
import torch

from plimsoll_kernels.cpu.compile import library_path
from plimsoll_kernels.cpu.library import kernels
from plimsoll_kernels.cpu.threads import thread_count
from plimsoll_kernels.whole_file import write_whole
from plimsoll_runtime.execution.device import peaks
from plimsoll_runtime.execution.device.gpus import device_name
from plimsoll_runtime.execution.device.peaks import Peaks, measure
from plimsoll_runtime.weights.cache import cache_root
from plimsoll_runtime.weights.stored_tensor import dtype_name

logger = logging.getLogger(__name__)

FOLDER = "peaks"
"""Subfolder of the cache folder. A file's name is a digest of everything that its figures depend on."""
MARGIN = 2
"""A measurement takes READ_BYTES of memory for a moment, and needs this many times as much to be free."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes and operations per second. The key is stored for people to read."""

    key: dict[str, object]
    bandwidth: float
    rate: float


def stored_peaks(device: torch.device, dtype: torch.dtype, neighbours: int = 1) -> Peaks | None:
    """Return the peaks that were measured before; None if there are none or the file cannot be read.

    `neighbours`: processes that compute on this device at the same time, this one included.
    """
    path = _path_of(_key(device, dtype, neighbours))
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("cannot read %s (%s); measuring the peaks of the device again", path, error)
        return None
    return Peaks(found.bandwidth, found.rate)


def measured_peaks(device: torch.device, dtype: torch.dtype, free: int, neighbours: int = 1) -> Peaks | None:
    """Measure the peaks and store them; None if fewer than MARGIN x READ_BYTES of the device's memory are `free`.

    It takes about a second on a CPU. Other load makes the result too low; `plimsoll profile` measures again and stores
    the higher figures.
    """
    if free < MARGIN * peaks.READ_BYTES:
        return None
    found = measure(device, dtype)
    store_peaks(device, dtype, found, neighbours)
    return found


def store_peaks(device: torch.device, dtype: torch.dtype, found: Peaks, neighbours: int = 1) -> None:
    """Store peaks, or the higher ones if there are some already. A full or read-only disk is logged."""
    before = stored_peaks(device, dtype, neighbours)
    best, key = found if before is None else found.best_of(before), _key(device, dtype, neighbours)
    path = _path_of(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.format(msgspec.json.encode(_File(key, best.bandwidth, best.rate))))
    except OSError as error:
        logger.warning(
            "cannot store the peaks of the device in %s (%s), so every start measures again; free some space or set "
            "PLIMSOLL_CACHE to a writable folder",
            path.parent,
            error,
        )


def _key(device: torch.device, dtype: torch.dtype, neighbours: int) -> dict[str, object]:
    found = kernels(dtype) if device.type == "cpu" else None
    return {
        "hardware": device_name(device),
        "threads": thread_count() if device.type == "cpu" else None,
        "neighbours": neighbours,
        "torch": str(torch.__version__),
        "kernels": None if found is None else [found.name.decode(), library_path().name],
        "dtype": dtype_name(dtype),
    }


def _path_of(key: dict[str, object]) -> Path:
    digest = hashlib.sha256(msgspec.json.encode(key, order="sorted")).hexdigest()[:24]
    return cache_root() / FOLDER / f"{digest}.json"
