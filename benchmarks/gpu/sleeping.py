"""A model that sleeps in host memory and wakes: seconds, and the share of the copy rate of pinned memory."""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

import torch

from gpu.clock import seconds
from plimsoll_runtime.driver.build.loader import load_model
from plimsoll_runtime.driver.estimate import measure as needs_of
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.utils.progress import silent
from plimsoll_runtime.weights.image import Image

COPIED = 2**30
"""Bytes copied to measure the rate of pinned memory."""


def measure(model: str, rounds: int, device: torch.device, dtype: str = "bfloat16") -> dict[str, Any]:
    """Write the weights into an image once, then repeatedly wake from it and sleep. Waking includes pinning the image's
    pages; sleeping frees the device's memory, and the image stays.
    """
    config = EngineConfig(model=model, dtype=dtype)
    image = Image.create(needs_of(config).image, "bench")
    try:
        _woken(config, image, device)
        taken = [_woken(config, image, device) for _ in range(rounds)]
    finally:
        image.close()
    rate = pinned_rate(COPIED, rounds, device)
    wake = statistics.median(each["wake"] for each in taken)
    return {
        "gib": round(taken[0]["bytes"] / 2**30, 2),
        "pinned_gb_s": round(rate / 1e9, 2),
        "wake_seconds": round(wake, 3),
        "sleep_seconds": round(statistics.median(each["sleep"] for each in taken), 3),
        "of_pinned": round(taken[0]["bytes"] / wake / rate, 4),
    }


def pinned_rate(nbytes: int, rounds: int, device: torch.device) -> float:
    """Return bytes per second from pinned host memory to the device."""
    host = torch.ones(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = torch.empty(nbytes, dtype=torch.uint8, device=device)
    return nbytes / seconds(lambda: there.copy_(host, non_blocking=True), device, rounds)


def _woken(config: EngineConfig, image: Image, device: torch.device) -> dict[str, float]:
    """Return the seconds of waking (the first time: of loading), the bytes read, and the seconds of falling asleep."""
    began = time.perf_counter()
    loaded = load_model(config, device, image, None, silent)
    _wait(device)
    woken = time.perf_counter()
    nbytes = loaded.weight_bytes if device.type == "cuda" else image.size
    del loaded
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    _wait(device)
    return {"wake": woken - began, "bytes": float(nbytes), "sleep": time.perf_counter() - woken}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
