"""Facts about a machine's GPUs, and the findings that an engine reports at its start: one line each, with what
to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of a GPU. `sibling`: it is an engine of the same host, so its memory is part of that
    host's plan.
    """

    pid: int
    name: str
    nbytes: int
    sibling: bool = False


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of the machine as its driver reports it, whether this process may use it or not. `mig`: MIG is on, so
    processes use slices of it.
    """

    uuid: str
    name: str
    mig: bool = False
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class UsedDevice:
    """The device that models run on, as CUDA sees it; sizes in bytes, before this process has allocated anything.

    `context`: the most that CUDA itself takes for a process.
    """

    name: str
    uuid: str
    capability: tuple[int, int]
    total: int
    free: int
    context: int = 2**30

    @property
    def held(self) -> int:
        """Bytes that other processes hold; 0 if CUDA's own context may explain them."""
        taken = self.total - self.free
        return taken if taken > self.context else 0


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Facts of the environment, torch, the driver and the GPUs.

    `visible`: CUDA_VISIBLE_DEVICES, None if it is not set. `built_for`: the CUDA version that torch is built for, None
    if it is built without. `driver_cuda`: the newest CUDA version that the driver supports, None without a driver.
    `used`: None if CUDA finds no device. `gpus`: all of the machine, None if nvidia-smi did not run or failed.
    """

    visible: str | None = None
    built_for: tuple[int, int] | None = None
    driver_cuda: tuple[int, int] | None = None
    used: UsedDevice | None = None
    gpus: tuple[Gpu, ...] | None = None


NATIVE_BFLOAT16 = (8, 0)
"""The first compute capability whose tensor cores multiply bfloat16."""
MIG_NAME = " MIG "
"""Part of the name that CUDA gives a MIG slice."""
ON_THE_CPU = "models run on the CPU"
"""The consequence if no GPU can be used, unless the caller names another."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A text for people. `serious`: it is logged as a warning, otherwise as information."""

    text: str
    serious: bool = True


def findings(facts: DeviceFacts, without: str = ON_THE_CPU) -> list[Finding]:
    """Return all findings, those about the selection of the device first. `without`: the consequence if no GPU is used,
    as text.
    """
    return [*_unused(facts, without), *_named(facts, without), *_about(facts.used, facts.gpus or ())]


def _unused(facts: DeviceFacts, without: str) -> Iterator[Finding]:
    """Yield why CUDA finds no device, if there seems to be one."""
    if facts.used is not None or (facts.driver_cuda is None and not facts.gpus):
        return
    if facts.built_for is None:
        yield Finding(f"this torch is built without CUDA: {without}; install a build of torch with CUDA")
    elif facts.driver_cuda is not None and facts.driver_cuda[0] < facts.built_for[0]:
        # A driver runs programs that are built for any minor version of its CUDA.
        yield Finding(
            f"the NVIDIA driver has CUDA {_version(facts.driver_cuda)}, and this torch is built for "
            f"{_version(facts.built_for)}: {without}; update the driver, or install a torch that is built for "
            f"CUDA {facts.driver_cuda[0]}"
        )
    elif _hides_all(facts.visible):
        count = f"all {len(facts.gpus)} GPUs" if facts.gpus else "every GPU"
        yield Finding(
            f"CUDA_VISIBLE_DEVICES={facts.visible!r} hides {count} from this process: {without}; unset it, or name "
            "a GPU"
        )
    elif facts.gpus and all(gpu.mig for gpu in facts.gpus):
        yield Finding(
            f"MIG is on, and this process has no slice: {without}; create one (nvidia-smi mig -cgi PROFILE -C), "
            "or request one in spec.resources"
        )
    elif facts.gpus and not _unknown(facts.visible, facts.gpus):
        yield Finding(
            f"the driver shows {len(facts.gpus)} GPUs, and CUDA finds none that it may use: {without}; give the "
            "container a GPU (nvidia.com/gpu in spec.resources; --gpus for docker)"
        )


def _named(facts: DeviceFacts, without: str) -> Iterator[Finding]:
    """Yield the entry of CUDA_VISIBLE_DEVICES that does not exist: CUDA ignores it and all entries after it."""
    if facts.gpus is None or not (unknown := _unknown(facts.visible, facts.gpus)):
        return
    has = f"this machine has GPU 0 to {len(facts.gpus) - 1}" if facts.gpus else "this machine has no GPU"
    what = without if facts.used is None else "CUDA ignores it and all entries after it"
    yield Finding(
        f"CUDA_VISIBLE_DEVICES={facts.visible!r} names {unknown}, and {has}: {what}; nvidia-smi -L lists them"
    )


def _about(used: UsedDevice | None, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Yield findings about the device that is used."""
    if used is None:
        return
    if MIG_NAME in used.name:
        yield Finding(f"{used.name} is a MIG slice: its memory is only {_size(used.total)}", serious=False)
    if used.capability < NATIVE_BFLOAT16:
        yield Finding(
            f"{used.name} (compute capability {_version(used.capability)}) has no bfloat16: models that are stored in "
            "it run in float16; use --dtype float32 if float16's range is too small",
            serious=False,
        )
    if used.held:
        yield from _held(used, next((gpu for gpu in gpus if gpu.uuid == used.uuid), None))


def _held(used: UsedDevice, gpu: Gpu | None) -> Iterator[Finding]:
    """Yield a finding if processes other than engines of the same host hold memory."""
    holders = () if gpu is None else gpu.holders
    planned = sum(holder.nbytes for holder in holders if holder.sibling)
    outside = used.held - planned
    if outside <= used.context * (1 + sum(holder.sibling for holder in holders)):
        return
    named = [f"pid {h.pid} ({h.name}) {_size(h.nbytes)}" for h in holders if not h.sibling]
    who = ", ".join(named) or "processes that are not visible here, perhaps in other containers"
    yield Finding(
        f"{_size(outside)} of {_size(used.total)} of {used.name} are already held by {who}: models "
        "get only the rest; end these processes, or give each its own device"
    )


def _hides_all(visible: str | None) -> bool:
    return visible is not None and visible.split(",")[0].strip() in ("", "-1", "NoDevFiles", "none", "void")


def _unknown(visible: str | None, gpus: tuple[Gpu, ...]) -> str | None:
    """Return the first entry of CUDA_VISIBLE_DEVICES that names no GPU of the machine; None if all exist or none is
    visible. MIG slices have UUIDs of their own, which are not checked.
    """
    if visible is None or _hides_all(visible):
        return None
    for name in (part.strip() for part in visible.split(",")):
        if name.startswith("MIG"):
            continue
        there = int(name) < len(gpus) if name.isdecimal() else any(gpu.uuid.startswith(name) for gpu in gpus)
        if not there or not name:
            return f"GPU {name}" if name.isdecimal() else repr(name)
    return None


def _version(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
