"""How much memory there is, and how much of it the KV cache gets.

Everything is in bytes unless it says blocks or tokens. Inside a container the limit is its cgroup's, not the
machine's: a pod that trusts /proc/meminfo is killed when its cache fills.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from plimsoll_runtime.errors import MemoryLimitError, UsageError
from plimsoll_runtime.sizes import parse_size

DEFAULT_SHARE_CPU = 0.25
DEFAULT_SHARE_GPU = 0.9
CGROUPS = Path("/sys/fs/cgroup")
_V2 = ("memory.max", "memory.current", "memory.stat", "inactive_file")
_V1 = (
    "memory/memory.limit_in_bytes",
    "memory/memory.usage_in_bytes",
    "memory/memory.stat",
    "total_inactive_file",
)


@dataclass(frozen=True, slots=True)
class KvBudget:
    """How many blocks the cache gets, block 0 (padding) included, and the longest sequence they are to hold."""

    num_blocks: int
    max_model_len: int
    kv_bytes: int


def free_memory(device: torch.device) -> int:
    """Bytes that this process may still take on the device, its cgroup's limit respected."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    left = cgroup_left(CGROUPS)
    return free if left is None else min(free, left)


def cgroup_left(root: Path) -> int | None:
    """Bytes left under the cgroup's memory limit (v2 or v1); None where there is no limit.

    Pages of files that were read once count as used, but the kernel gives them up first: they are left.
    """
    for limit_file, usage_file, stat_file, reclaimable in (_V2, _V1):
        limit, usage = _read_bytes(root / limit_file), _read_bytes(root / usage_file)
        if limit is not None and usage is not None:
            return max(0, limit - usage + _read_stat(root / stat_file, reclaimable))
    return None


def plan_kv_cache(
    *,
    free: int,
    kv_memory: str | None,
    block_bytes: int,
    block_size: int,
    max_model_len: int | None,
    model_limit: int,
    max_sequences: int,
    default_share: float,
) -> KvBudget:
    """Divide memory into blocks: what was asked for, else a share of what is free, never more than can be used.

    `model_limit` is the longest sequence that the model allows. With `max_model_len` None the limit shrinks to
    what the cache holds; an explicit one that does not fit is refused with the numbers (MemoryLimitError), one
    beyond what the model allows likewise (UsageError).
    """
    if max_model_len is not None and max_model_len > model_limit:
        raise UsageError(f"--max-model-len {max_model_len} is beyond the model's limit of {model_limit} tokens")
    if kv_memory is not None:
        wanted = parse_size(kv_memory, free)
        if wanted > free:
            raise MemoryLimitError(
                f"--kv-memory {kv_memory} asks for {_gib(wanted)}, "
                f"but {_gib(free)} are free once the weights are loaded"
            )
        num_blocks = wanted // block_bytes
    else:
        longest = max_model_len or model_limit
        useful = max_sequences * -(-longest // block_size) + 1
        num_blocks = min(int(free * default_share) // block_bytes, useful)
    capacity = (num_blocks - 1) * block_size
    need = max_model_len or min(model_limit, 2 * block_size)
    if capacity < need:
        blocks = -(-need // block_size) + 1
        raise MemoryLimitError(
            f"the KV cache would hold {max(0, capacity)} tokens, but a sequence may have {need}: it needs "
            f"{_gib(blocks * block_bytes)} ({blocks} blocks of {block_bytes} bytes), {_gib(free)} are free; "
            "lower --max-model-len or raise --kv-memory or the memory of the machine"
        )
    return KvBudget(num_blocks, max_model_len or min(model_limit, capacity), num_blocks * block_bytes)


def _read_bytes(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _read_stat(path: Path, key: str) -> int:
    try:
        rows = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(value) for name, value in (row.split() for row in rows) if name == key), 0)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
