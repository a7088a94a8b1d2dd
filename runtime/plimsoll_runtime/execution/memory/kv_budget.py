"""How much memory there is, and how much of it the KV cache gets.

Everything is in bytes unless it says blocks or tokens. Inside a container the limit is its cgroup's, not the
machine's: a pod that trusts /proc/meminfo is killed when its cache fills.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.kv.cache_groups import NOTHING_READ, ONE_FULL, Rule, longest_within, sequence_blocks
from plimsoll_runtime.engine.limits import check_length
from plimsoll_runtime.errors import MemoryLimitError
from plimsoll_runtime.execution.kv.layout import KvLayout
from plimsoll_runtime.execution.memory.system import cgroup_left
from plimsoll_runtime.models.program import Facts
from plimsoll_runtime.utils.sizes import is_share, parse_size

DEFAULT_SHARE_CPU = 0.25
DEFAULT_SHARE_GPU = 0.9
NAMED_BLOCKS = 4096
"""Where blocks have no bytes: how many more there are than running sequences take, to find earlier ones' prefixes."""


@dataclass(frozen=True, slots=True)
class KvBudget:
    """How many blocks the cache gets, block 0 (padding) included, and the longest sequence they are to hold.

    `kv_bytes` is exactly `num_blocks` blocks: the padding block is paid from the same amount. The cache may be given
    other sizes later, from `least_blocks` to `most_blocks`. A block has `block_size` tokens of one of `groups`.
    """

    num_blocks: int
    max_model_len: int
    kv_bytes: int
    least_blocks: int
    most_blocks: int
    block_size: int
    groups: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes of the loaded weights, what is free beside them, and what the largest step takes of that."""

    weights: int
    free: int
    workspace: int

    @property
    def usable(self) -> int:
        """What the KV cache may have at most."""
        return max(0, self.free - self.workspace)

    def __str__(self) -> str:
        return (
            f"the weights take {_size(self.weights)}; {_size(self.free)} are free beside them, of which a step takes "
            f"{_size(self.workspace)}"
        )


def free_memory(device: torch.device) -> int:
    """Bytes that this process may still take on the device, its cgroup's limit respected."""
    if device.type != "cpu":
        torch.accelerator.empty_cache()  # what torch's allocator keeps for later is free
        return int(torch.accelerator.get_memory_info(device)[0])
    free = int(psutil.virtual_memory().available)
    left = cgroup_left()
    return free if left is None else min(free, left)


def check_weights_fit(weights: int, free: int) -> None:
    """Raises MemoryLimitError before a load that would end in the kernel's killing the process."""
    if weights > free:
        raise MemoryLimitError(
            f"the weights need {_size(weights)}, but {_size(free)} are free; raise the memory limit, choose a smaller "
            "model or a smaller --dtype"
        )


def check_step_fits(room: FreeMemory) -> None:
    """Raises MemoryLimitError where the largest step has no room beside the weights."""
    if room.workspace > room.free:
        raise MemoryLimitError(
            f"{room}, with what recurrent layers keep of every sequence: lower --max-sequences, --state-snapshots or "
            "--max-batch-tokens, or raise the memory limit"
        )


def no_staging(num_blocks: int) -> int:
    """For a cache without a disk behind it, or whose staging area is in another memory."""
    return 0


def plan_kv_cache(
    *,
    room: FreeMemory,
    kv_memory: str | None,
    layout: KvLayout,
    max_model_len: int | None,
    model_limit: int,
    max_sequences: int,
    default_share: float,
    staging: Callable[[int], int] = no_staging,
) -> KvBudget:
    """Divide memory into blocks: what was asked for, else a share of what is usable, never more than can be used.

    `staging` says how many bytes so many blocks want beside them. An amount is the blocks' alone; a share holds both.
    `model_limit` is the longest sequence that the model allows. With `max_model_len` None the limit shrinks to
    what the cache holds; an explicit one that does not fit is refused with the numbers (MemoryLimitError), one
    beyond what the model allows likewise (UsageError).
    """
    check_length(max_model_len, model_limit)
    if kv_memory is not None:
        wanted = parse_size(kv_memory, room.usable)
        share = is_share(kv_memory)
        num_blocks = _blocks_within(wanted, layout.block_bytes, staging) if share else wanted // layout.block_bytes
        beside = 0 if share else staging(num_blocks)
        if wanted + beside > room.usable:
            raise MemoryLimitError(
                f"--kv-memory {kv_memory} asks for {_size(wanted)}{_and_staging(beside)}, but {_size(room.usable)} can "
                f"be had: {room}; lower --kv-memory, --max-batch-tokens or --max-sequences, or raise the memory limit"
            )
    else:
        useful = max_sequences * (_blocks_of(max_model_len or model_limit, layout) - 1) + 1
        num_blocks = min(_blocks_within(int(room.usable * default_share), layout.block_bytes, staging), useful)
    need = max_model_len or min(model_limit, 2 * layout.block_size)
    capacity = _capacity(num_blocks, layout, max_model_len or model_limit)
    if capacity < need:
        blocks = _blocks_of(need, layout)
        raise MemoryLimitError(
            f"the KV cache would hold {capacity} tokens, but a sequence may have {need}, for which it needs "
            f"{_size(blocks * layout.block_bytes)} ({blocks} blocks of {layout.block_bytes} bytes)"
            f"{_and_staging(staging(blocks))}: "
            f"{room}; raise --kv-memory, lower --max-model-len, --max-batch-tokens or --max-sequences, or raise the "
            "memory limit"
        )
    return _budget(layout, num_blocks, num_blocks, max_model_len or capacity)


def granted_kv_cache(
    *,
    kv: int,
    least: int,
    most: int,
    layout: KvLayout,
    max_model_len: int | None,
    model_limit: int,
) -> KvBudget:
    """Blocks of what was granted: `kv` bytes at the start, never less than `least` and never more than `most`.

    With `max_model_len` None the limit is what the least holds. Raises MemoryLimitError where it holds no sequence of
    that length (none of two blocks, without one), UsageError for a length beyond what the model allows.
    """
    check_length(max_model_len, model_limit)
    block_bytes = layout.block_bytes
    need = max_model_len or min(model_limit, 2 * layout.block_size)
    capacity = _capacity(least // block_bytes, layout, max_model_len or model_limit)
    if capacity < need:
        blocks = _blocks_of(need, layout)
        raise MemoryLimitError(
            f"the {least} bytes that are granted to the KV cache for good hold {capacity} tokens, but a "
            f"sequence may have {need}: grant {blocks * block_bytes} bytes ({blocks} blocks of {block_bytes}), or "
            "lower --max-model-len"
        )
    return _budget(layout, kv // block_bytes, most // block_bytes, max_model_len or capacity)


def no_kv_cache(config: EngineConfig, facts: Facts) -> KvBudget:
    """Of a model that caches nothing of a token: blocks of no bytes, so many that slots alone bound how many run.

    An encoder's each hold a whole prompt. A decoder's only say which tokens were computed: there are enough for all
    sequences that may run, for one more of each that the scheduler keeps for its next token and for what a step
    computes, and some for prefixes of earlier sequences.
    """
    check_length(config.max_model_len, facts.max_positions)
    longest = config.max_model_len or facts.max_positions
    if facts.whole:
        num_blocks = 2 * config.max_sequences + 1
        return KvBudget(num_blocks, longest, 0, num_blocks, num_blocks, longest, ONE_FULL)
    size = config.block_size
    each = sequence_blocks(NOTHING_READ, longest, size) + 1
    num_blocks = config.max_sequences * each + -(-config.max_batch_tokens // size) + NAMED_BLOCKS + 1
    return KvBudget(num_blocks, longest, 0, num_blocks, num_blocks, size, NOTHING_READ)


def least_kv_bytes(max_model_len: int | None, model_limit: int, layout: KvLayout) -> int:
    """Bytes of the smallest cache that an engine can do with: a sequence of the limit, or of two blocks without one."""
    return _blocks_of(max_model_len or min(model_limit, 2 * layout.block_size), layout) * layout.block_bytes


def most_kv_bytes(sequences: int, longest: int, layout: KvLayout) -> int:
    """Bytes of a cache that holds so many sequences of the longest."""
    return (sequences * (_blocks_of(longest, layout) - 1) + 1) * layout.block_bytes


def longest_held(kv_bytes: int, layout: KvLayout, limit: int) -> int:
    """Most tokens, up to `limit`, of a sequence that has so many bytes for itself; at least one."""
    return max(1, _capacity(kv_bytes // layout.block_bytes, layout, limit))


def _budget(layout: KvLayout, num_blocks: int, most_blocks: int, longest: int) -> KvBudget:
    kv_bytes, least = num_blocks * layout.block_bytes, _blocks_of(longest, layout)
    return KvBudget(num_blocks, longest, kv_bytes, least, most_blocks, layout.block_size, layout.rules)


def _blocks_of(tokens: int, layout: KvLayout) -> int:
    """Blocks that a sequence of so many tokens needs, with the padding block."""
    return sequence_blocks(layout.rules, tokens, layout.block_size) + 1


def _capacity(num_blocks: int, layout: KvLayout, limit: int) -> int:
    """Most tokens, up to `limit`, of a sequence that has so many blocks for itself but the padding block."""
    return longest_within(layout.rules, num_blocks - 1, layout.block_size, limit)


def _blocks_within(total: int, block_bytes: int, staging: Callable[[int], int]) -> int:
    """The most blocks that `total` bytes hold together with their staging area."""
    counts = range(1, total // block_bytes + 1)
    return bisect_right(counts, total, key=lambda count: count * block_bytes + staging(count))


def _and_staging(size: int) -> str:
    return f" and {_size(size)} of frames between it and --kv-disk" if size else ""


def _size(size: int) -> str:
    """GiB, or MiB where that says more."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"
