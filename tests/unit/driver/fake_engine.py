"""Engines for child processes in tests. The model's name selects the engine's behaviour."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

from builders import make_core

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.plan import Launched, StepPlan
from plimsoll_runtime.errors import MemoryLimitError, ModelError, SourceError, UsageError

FACTORY = "fake_engine:build"
POISON_PROMPT = 40
"""A prompt that begins with this token triggers the behaviour of the model's name."""


class AcceleratorError(RuntimeError):
    """Stands for the error that torch raises when a device has failed."""


DEVICE_ERRORS = {
    "faults": "CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA`.",
    "ecc": "CUDA error: uncorrectable ECC error encountered\nCompile with `TORCH_USE_CUDA_DSA`.",
    "lost": "CUDA error: no CUDA-capable device is detected",
}

LOAD_ERRORS = {
    "ecc-while-loading": AcceleratorError(DEVICE_ERRORS["ecc"]),
    "source": SourceError("no such model"),
    "model": ModelError("an unexpected tensor"),
    "memory": MemoryLimitError("it needs 2 GiB"),
    "usage": UsageError("cannot be"),
    "bug": ValueError("a bug"),
    "host-memory": MemoryError("no memory"),
}


class OutOfMemoryError(RuntimeError):
    """Stands for the error that torch raises when device memory runs out."""


class TroubledRunner:
    """Computes plans like the wrapped runner, until the poison prompt triggers the trouble."""

    def __init__(self, inner: Callable[[StepPlan], Launched], trouble: str) -> None:
        self._inner = inner
        self._trouble = trouble

    def run(self, plan: StepPlan) -> Launched:
        if any(init.prompt_ids[0] == POISON_PROMPT for init in plan.new_slots):
            self._make_trouble()
        return self._inner(plan)

    def _make_trouble(self) -> None:
        if self._trouble == "raises":
            raise RuntimeError("the device is gone")
        if self._trouble == "device-memory":
            raise OutOfMemoryError("the device is full")
        if self._trouble in DEVICE_ERRORS:
            raise AcceleratorError(DEVICE_ERRORS[self._trouble])
        if self._trouble == "exits":
            os._exit(77)
        if self._trouble == "hangs":
            time.sleep(1000)


def build(config: EngineConfig, progress: Callable[[str, float], None]) -> EngineCore:
    """Build an engine with a simulated runner, with the trouble that `config.model` names."""
    if config.model in LOAD_ERRORS:
        raise LOAD_ERRORS[config.model]
    for percent in range(1001):
        progress("weights", percent / 1000)
    progress("warm-up", 1.0)
    if config.model.startswith("loads-for-ever:"):
        Path(config.model.partition(":")[2]).write_text(str(os.getpid()))
        time.sleep(1000)
    if config.model == "killed-while-loading":
        os.kill(os.getpid(), 9)
    if config.model == "speaks":
        os.write(1, b"standard output is not the channel\n")
    core, _ = make_core(
        num_blocks=2000,
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        overlap=True,
        step_timeout=config.step_timeout,
        max_model_len=600 if config.model == "resizes" else None,
        least_blocks=151 if config.model == "resizes" else 0,
        most_blocks=4000 if config.model == "resizes" else 0,
        wrap=lambda runner: TroubledRunner(runner.run, config.model),
    )
    return core


def missing(config: EngineConfig, progress: Callable[[str, float], None]) -> EngineCore:
    """Raise an error of the operating system, which has no ErrorKind."""
    raise OSError(errno.ENOSPC, "no space left")
