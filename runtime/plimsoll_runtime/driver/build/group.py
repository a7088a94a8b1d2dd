"""Builds the engine of a parallel group: its ranks are child processes of this one, which only schedules."""

from __future__ import annotations

import weakref
from dataclasses import replace

import torch

from plimsoll_kernels.cpu.exchange import MOST_RANKS
from plimsoll_runtime.driver.process.rank_group import RankGroup
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.step_timing import Timeline
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.device.select import choose, cores
from plimsoll_runtime.utils.progress import Progress


def check_group_options(config: EngineConfig, *, probed: bool, hosted: bool) -> None:
    """Raise UsageError for options that a parallel group does not support. `hosted`: the engine is one of a host's."""
    for used, what in (
        (config.kv_disk is not None, "--kv-disk"),
        (config.kv_host_memory is not None, "--kv-host-memory"),
        (hosted, "a model of `plimsoll host`"),
        (probed, "`plimsoll profile`"),
    ):
        if used:
            raise UsageError(
                f"--tensor-parallel {config.tensor_parallel} does not support {what}; omit it, or use one rank"
            )
    device = choose(config.device)
    if config.group_backend == "local" and (device.type != "cpu" or config.tensor_parallel > MOST_RANKS):
        raise UsageError(f"--group-backend local is for 2 to {MOST_RANKS} ranks on a CPU; choose gloo or nccl")
    if config.group_backend == "nccl" and device.type != "cuda":
        raise UsageError("--group-backend nccl needs a GPU for each rank, and the device is a CPU; use gloo")
    if device.type == "cuda" and torch.cuda.device_count() < config.tensor_parallel:
        raise UsageError(
            f"--tensor-parallel {config.tensor_parallel} needs as many GPUs, but torch finds "
            f"{torch.cuda.device_count()}; lower it, or use --device cpu"
        )


def rank_config(config: EngineConfig) -> EngineConfig:
    """Return the options of each rank, with its part of the threads."""
    return replace(config, threads=max(1, (config.threads or cores()) // config.tensor_parallel))


def build_group(config: EngineConfig, progress: Progress) -> EngineCore:
    """Start the ranks and return an engine that is ready to step. Raises the errors of `build_engine`, of any rank."""
    group, engine_timeline = RankGroup(rank_config(config), progress), Timeline()
    core = EngineCore(
        config, group.info, group, engine_timeline, group.timeline, compiler=group.grammars, recovery=group
    )
    weakref.finalize(core, group.end)
    return core
