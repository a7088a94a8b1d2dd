"""Builds the engine of a parallel group: its ranks are child processes of this one, which only schedules."""

from __future__ import annotations

import weakref

import torch

from plimsoll_kernels.cpu.exchange import MOST_RANKS
from plimsoll_kernels.cpu.library import library
from plimsoll_runtime.driver.build.group_devices import check_machine
from plimsoll_runtime.driver.build.model_files import find_files
from plimsoll_runtime.driver.process.group_facts import identity_of
from plimsoll_runtime.driver.process.member_listener import MemberListener
from plimsoll_runtime.driver.process.rank_group import RankGroup
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.step_timing import Timeline
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.device.select import choose
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
            raise UsageError(f"a model with {config.ranks} ranks does not support {what}; omit it, or use one rank")
    if config.overlap is not None and config.pipeline_parallel > 1:
        raise UsageError(
            f"--pipeline-parallel {config.pipeline_parallel} has one step for each stage under way in any case; omit "
            "--overlap and --no-overlap"
        )
    device = choose(config.device)
    if config.group_backend == "local":
        _check_local(config, device)
    check_machine(config, device, config.ranks // config.group.size)


def _check_local(config: EngineConfig, device: torch.device) -> None:
    if device.type != "cpu":
        raise UsageError(f"--group-backend local is for CPUs, and the device is {device.type}; choose nccl")
    if config.tensor_parallel > MOST_RANKS:
        raise UsageError(
            f"--group-backend local is for at most {MOST_RANKS} ranks, but --tensor-parallel is "
            f"{config.tensor_parallel}; choose gloo"
        )
    if library() is None:
        raise UsageError("--group-backend local needs Plimsoll's CPU kernels, which were not built here; choose gloo")


def build_group(config: EngineConfig, progress: Progress) -> EngineCore:
    """Start the ranks and return an engine that is ready to step, after all members of the group have joined.

    Raises the errors of `build_engine`, of any rank.
    """
    members = None
    if config.group.size > 1:
        identity = identity_of(config, find_files(config, progress))
        members = MemberListener(identity, config.group, config.ranks)
    group, engine_timeline = RankGroup(config, progress, members), Timeline()
    core = EngineCore(
        config, group.info, group, engine_timeline, group.timeline, compiler=group.grammars, recovery=group
    )
    core.durations.learn(group.first.prompt_len, group.first.prompt_seconds)
    weakref.finalize(core, group.end)
    return core
