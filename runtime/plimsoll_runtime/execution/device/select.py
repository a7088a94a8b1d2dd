"""Selects the device, the dtype and the number of threads, or explains why no GPU can be used."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import torch

from plimsoll_kernels.cpu.library import InstructionsError, instructions
from plimsoll_kernels.cpu.threads import ThreadShare, share
from plimsoll_runtime.errors import DeviceLostError, UsageError
from plimsoll_runtime.execution.device.diagnostics import DeviceFacts, findings
from plimsoll_runtime.execution.device.faults import LOOK_FOR_XID
from plimsoll_runtime.execution.device.gpus import read_facts

NONE_USED = "no GPU can be used"
WANTED = "--device cuda needs a GPU, but torch finds none"
NO_DRIVER = (
    "there is no NVIDIA driver here: give the container a GPU (spec.resources.accelerator; --gpus for docker), or "
    "install the GPU's driver"
)
NOT_STARTED = "the NVIDIA driver (CUDA {0}.{1}) finds no usable GPU: if one worked before, " + LOOK_FOR_XID
OTHERWISE = "to run models on the CPU, use --device cpu (in a cluster, omit spec.resources.accelerator)"


def refusal(facts: DeviceFacts, told: str) -> str:
    """Return the message for a machine on which torch finds no GPU; `told`: torch's own message."""
    found = [each.text for each in findings(facts, NONE_USED)]
    if not found:
        found = [NO_DRIVER if facts.driver_cuda is None else NOT_STARTED.format(*facts.driver_cuda)]
    return "; ".join([f"{WANTED}: {told.rstrip('.')}", *found, OTHERWISE])


def choose(wanted: str) -> torch.device:
    """Return the device for one of `engine.config.DEVICES`; torch calls AMD's GPUs "cuda" too. "cpu" needs no driver.

    Raises DeviceLostError if it must be a GPU and torch finds none, because a process that had one has lost it.
    """
    if wanted != "cpu" and torch.cuda.is_available():
        return torch.device("cuda")
    if wanted == "cuda":
        raise DeviceLostError(refusal(read_facts(), _why_none()))
    return torch.device("cpu")


def _why_none() -> str:
    """Return torch's own reason for finding no GPU, which it only gives when CUDA is initialised."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error).partition("\n")[0]
    return "torch gives no reason"


NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def check_instructions() -> None:
    """Raise UsageError if PLIMSOLL_CPU_ISA names instructions that this processor or build lacks."""
    try:
        instructions()
    except InstructionsError as error:
        raise UsageError(str(error)) from error


def bfloat16_is_fast(device: torch.device, *, ours: bool) -> bool:
    """Return whether a model in bfloat16 is at least as fast as in float32 on this device.

    The C++ CPU kernels (`ours`: they can serve the model) read half of float32's bytes. They multiply bfloat16 in pairs
    if the processor can, and otherwise convert it in registers. Stock torch is slower in bfloat16 if the CPU lacks it.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return ours or (_has_mkldnn() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


def _has_mkldnn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def choose_dtype(
    wanted: str, config: Mapping[str, Any], device: torch.device, *, quantised: bool, ours: bool
) -> torch.dtype:
    """Return the dtype for "auto" or a name.

    "auto" keeps the checkpoint's dtype if the device is fast at it. Otherwise bfloat16 becomes float16 on a GPU and
    float32 on a CPU (see `bfloat16_is_fast`), and float16 becomes float32 on a CPU. If the config names no dtype, that
    of a quantised file is bfloat16 and that of others float32. Raises UsageError for an unknown name, and for bfloat16
    on a GPU without it.
    """
    if wanted != "auto":
        if wanted not in NAMES:
            raise UsageError(f"--dtype {wanted} is unknown; choose auto, {', '.join(NAMES)}")
        if wanted == "bfloat16" and device.type == "cuda" and not bfloat16_is_fast(device, ours=ours):
            raise UsageError(
                f"--dtype bfloat16: {torch.cuda.get_device_name(device)} has no bfloat16; choose float16, or float32 "
                "if float16's range is too small"
            )
        return NAMES[wanted]
    stored = config.get("dtype") or config.get("torch_dtype") or ("bfloat16" if quantised else "float32")
    dtype = NAMES.get(str(stored).removeprefix("torch."), torch.float32)
    if dtype is torch.bfloat16 and not bfloat16_is_fast(device, ours=ours):
        return torch.float16 if device.type == "cuda" else torch.float32
    if dtype is torch.float16 and device.type == "cpu":
        return torch.float32
    return dtype


logger = logging.getLogger(__name__)


def cores() -> int:
    """Return the number of cores that this process may use: its affinity, not the machine's."""
    return len(os.sched_getaffinity(0))


def take_threads(asked: int | None) -> ThreadShare:
    """Let torch and the kernels use the requested number of threads each, by default one per core that this process may
    use.

    Also called by commands that only predict what an engine needs, because the backends' speed and so the selected
    backend depend on it.
    """
    available = cores()
    if asked is not None and asked > available:
        logger.warning(
            "%d threads share %d cores, which is slower; use at most %d threads", asked, available, available
        )
    return share(asked or available)
