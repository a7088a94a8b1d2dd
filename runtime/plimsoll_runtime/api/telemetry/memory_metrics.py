"""Memory by owner: that of each model on its device, and that of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import psutil
from prometheus_client.core import GaugeMetricFamily, Metric

from plimsoll_runtime.api.telemetry.labelled import labelled
from plimsoll_runtime.engine.protocol.messages import EngineInfo, EngineStats
from plimsoll_runtime.execution.memory.system import cgroup_limit
from plimsoll_runtime.residency.engines.pressure import Stalls, host_memory_left, read_stalls
from plimsoll_runtime.residency.spec import ModelName

GAUGE = GaugeMetricFamily
BLOCKS = (
    (
        GAUGE,
        "plimsoll_kv_block_tokens",
        "Tokens of a block of the KV cache, times plimsoll_kv_blocks: its capacity.",
        "block_size",
    ),
)
"""Of an engine's description."""


class HostMemory(NamedTuple):
    """Bytes that this process and its neighbours in the container may use, and those that are left.

    `stalls`: None if the kernel does not report them.
    """

    capacity: int
    left: int
    stalls: Stalls | None


def read_host_memory() -> HostMemory:
    """Read the memory of the machine, or that of the container if its limit is lower."""
    total, limit = int(psutil.virtual_memory().total), cgroup_limit()
    return HostMemory(total if limit is None else min(total, limit), host_memory_left(), read_stalls())


def owners(info: EngineInfo, stats: EngineStats) -> Mapping[str, int]:
    """Return the bytes of an engine's device memory by owner. They are disjoint: their sum is what the engine holds."""
    block_bytes = info.kv_bytes // info.num_blocks if info.num_blocks else 0
    return {
        "weights": info.weight_bytes,
        "kv": block_bytes * (stats.blocks_total + 1),
        "workspace": info.workspace_bytes - info.snapshot_bytes,
        "snapshots": info.snapshot_bytes,
        "process": info.overhead_bytes,
    }


def shares(memory: HostMemory, models: int) -> Mapping[str, int]:
    """Return how the capacity is divided: `models` bytes of engines, used or not, what others use, and the rest.

    The three add up to the capacity. Memory that an engine holds but has not touched yet is not free.
    """
    models = min(models, memory.capacity)
    other = max(0, memory.capacity - memory.left - models)
    return {"models": models, "other": other, "free": memory.capacity - models - other}


def memory_metrics(
    server: ModelName,
    infos: Mapping[ModelName, EngineInfo],
    stats: Mapping[ModelName, EngineStats],
    read: Callable[[], HostMemory] = read_host_memory,
) -> Iterator[Metric]:
    """Yield the memory of each engine by owner, and the host memory of a server whose models compute on the CPU here.

    `server`: the label of series about the whole server. Memory of GPUs is in `gpu_metrics`.
    """
    held = {model: owners(info, stats[model]) for model, info in infos.items()}
    yield from labelled(
        GAUGE,
        "plimsoll_memory_bytes",
        "Bytes of device memory that a model's engine holds, by owner; of a parallel group, the sum over its ranks.",
        ("owner",),
        {model: {(owner,): size for owner, size in own.items()} for model, own in held.items()},
    )
    memory = read()
    if memory.stalls is not None:
        yield from labelled(
            GAUGE,
            "plimsoll_memory_stalled_ratio",
            "Share of the last 10 s in which some or all work waited for host memory, from 0 to 1.",
            ("extent",),
            {server: {("some",): memory.stalls.some / 100, ("full",): memory.stalls.full / 100}},
        )
    if not infos or any(info.device != "cpu" for info in infos.values()) or any(one.group for one in stats.values()):
        return
    divided = shares(memory, sum(sum(own.values()) for own in held.values()))
    yield from labelled(
        GAUGE,
        "plimsoll_host_memory_bytes",
        "Bytes of the machine or container, by use: held by models, used by others, and free. The sum is its limit.",
        ("use",),
        {server: {(use,): size for use, size in divided.items()}},
    )
