"""The GPUs of a parallel group's ranks on this machine: which rank uses which, and options that cannot work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist

from plimsoll_kernels.cpu.exchange import MOST_RANKS
from plimsoll_kernels.cpu.library import library
from plimsoll_runtime.driver.process.interfaces import check_interface
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError

OF_CUDA = ("CUDA_VISIBLE_DEVICES",)
OF_ROCM = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""Variables that select GPUs, by platform. AMD's runtime reads all three."""
UUIDS = ("GPU-", "MIG-")


class Place(NamedTuple):
    """The GPU of a rank: its number, and the ranks of this machine that share its memory."""

    number: int
    sharing: int


def place_of(place: int, neighbours: int, devices: int) -> Place:
    """Return the GPU of a rank, which is number `place` of `neighbours` ranks on a machine with `devices` GPUs."""
    number = place % devices
    return Place(number, len(range(number, neighbours, devices)))


def backend_of(config: EngineConfig, device: torch.device) -> str:
    """Return the backend of a group's ranks for their option and device: nccl, gloo or local."""
    if config.group_backend != "auto":
        return config.group_backend
    if device.type == "cuda":
        return "nccl"
    return "local" if config.tensor_parallel <= MOST_RANKS and library() is not None else "gloo"


def check_machine(
    config: EngineConfig, device: torch.device, ranks: int, environment: Mapping[str, str] = os.environ
) -> None:
    """Check that `ranks` ranks of a group can compute on this machine, and that its environment lets them meet.

    Raises UsageError.
    """
    if config.device != "cpu":
        check_visible(environment, OF_ROCM if torch.version.hip else OF_CUDA)
    if config.group_backend == "nccl" and device.type != "cuda":
        raise UsageError("--group-backend nccl needs a GPU for each rank, and the device is a CPU; use gloo")
    backend = backend_of(config, device)
    if backend == "nccl":
        _check_gpus(config, ranks, environment)
    is_one_place = ranks == config.ranks and config.pipeline_parallel == 1
    if backend != "local" or not is_one_place:
        # Also the CPU kernels' ranks on several machines, or in several stages, find each other by gloo.
        check_interface("nccl" if backend == "nccl" else "gloo", environment)


def _check_gpus(config: EngineConfig, ranks: int, environment: Mapping[str, str]) -> None:
    """Raise UsageError if this machine's ranks cannot have a GPU each.

    Ranks over gloo may share GPUs, which is slow; it serves to check a group on a machine with one GPU.
    """
    if not dist.is_nccl_available():
        raise UsageError(f"torch {torch.__version__} was built without NCCL; use --group-backend gloo")
    if (devices := torch.cuda.device_count()) < ranks:
        members = config.ranks // ranks
        of_members = "" if members == 1 else f" and --group-size {members}"
        stages = "" if config.pipeline_parallel == 1 else f" and --pipeline-parallel {config.pipeline_parallel}"
        most = devices * members
        if stages:
            fewer = f"use at most {most} ranks"
        else:
            fewer = f"use --tensor-parallel {most}" if most > 1 else "omit --tensor-parallel"
        raise UsageError(
            f"--tensor-parallel {config.tensor_parallel}{stages}{of_members} need {ranks} GPUs here, but torch finds "
            f"{devices}{_seen_through(environment)}; {fewer}, or use --device cpu"
        )


def check_visible(environment: Mapping[str, str], variables: tuple[str, ...]) -> None:
    """Raise UsageError if a variable names a GPU twice: the driver then hides all GPUs, or the ones that follow."""
    for variable in variables:
        value = environment.get(variable, "")
        if (twice := repeated(value)) is not None:
            names = [each.strip() for each in value.split(",")]
            once = ",".join(name for at, name in enumerate(names) if not any(_same(name, n) for n in names[:at]))
            raise UsageError(
                f"{variable}={value} names the GPU {twice} twice, but each rank needs one of its own; set "
                f"{variable}={once}, or use --device cpu"
            )


def repeated(value: str) -> str | None:
    """Return the first entry of a list of GPUs that an earlier one names too; None if there is none.

    Entries are numbers, or UUIDs that may be abbreviated. Those from the first negative number on are not read.
    """
    seen: list[str] = []
    for entry in (each.strip() for each in value.split(",")):
        if entry.startswith("-"):
            return None
        if entry and any(_same(entry, other) for other in seen):
            return entry
        seen.append(entry)
    return None


def _same(one: str, other: str) -> bool:
    if one.isdecimal() and other.isdecimal():
        return int(one) == int(other)
    if one.startswith(UUIDS) and other.startswith(UUIDS):
        return one.startswith(other) or other.startswith(one)
    return one == other


def _seen_through(environment: Mapping[str, str]) -> str:
    """Return the variables that select GPUs, in brackets; empty if none is set."""
    found = [f"{name}={environment[name]}" for name in OF_ROCM if name in environment]
    return f" ({', '.join(found)})" if found else ""
