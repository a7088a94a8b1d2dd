"""Measures free memory and computes the size of the KV cache.

All numbers are bytes unless named blocks or tokens. Inside a container the limit is its cgroup's, not the machine's: a
pod that trusts /proc/meminfo is killed when its cache fills.
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
"""The blocks of a model without KV cache in addition to those of running sequences, for prefixes of earlier ones. They
take no memory.
"""


@dataclass(frozen=True, slots=True)
class KvBudget:
    """The number of blocks of the cache, including the padding block, and the longest sequence that it holds.

    `kv_bytes` is exactly `num_blocks` blocks, the padding block included. The cache may be resized later, from
    `least_blocks` to `most_blocks`. A block has `block_size` tokens of one of `groups`.
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
    """Bytes of the loaded weights, the bytes that are free next to them, and the bytes of those that the largest step
    takes.
    """

    weights: int
    free: int
    workspace: int

    @property
    def usable(self) -> int:
        """The most bytes that the KV cache may take."""
        return max(0, self.free - self.workspace)

    def __str__(self) -> str:
        return (
            f"the weights take {_size(self.weights)}; {_size(self.free)} are free next to them, of which a step takes "
            f"{_size(self.workspace)}"
        )


def free_memory(device: torch.device) -> int:
    """Return the bytes that this process may still take on the device, within its cgroup's limit."""
    if device.type != "cpu":
        torch.accelerator.empty_cache()  # Memory that torch's allocator keeps for later use is free.
        return int(torch.accelerator.get_memory_info(device)[0])
    free = int(psutil.virtual_memory().available)
    left = cgroup_left()
    return free if left is None else min(free, left)


def check_weights_fit(weights: int, free: int) -> None:
    """Raise MemoryLimitError instead of starting a load during which the kernel would kill the process."""
    if weights > free:
        raise MemoryLimitError(
            f"the weights need {_size(weights)}, but {_size(free)} are free; raise the memory limit, choose a smaller "
            "model or a smaller --dtype"
        )


def check_step_fits(room: FreeMemory) -> None:
    """Raise MemoryLimitError if the largest step does not fit next to the weights."""
    if room.workspace > room.free:
        raise MemoryLimitError(
            f"{room}, including recurrent states of every sequence: lower --max-sequences, --state-snapshots or "
            "--max-batch-tokens, or raise the memory limit"
        )


def no_staging(num_blocks: int) -> int:
    """Return 0 bytes: the cache has no disk tier, or its frames are in another memory."""
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
    num_blocks: int | None = None,
) -> KvBudget:
    """Divide memory into blocks: the requested size, else a share of the usable memory, never more than is usable.

    Without a requested size, at most the blocks that `max_sequences` of the longest sequences need. `staging` returns
    the bytes of frames that a number of blocks needs in addition. An amount in `kv_memory` is the blocks' alone; a
    share includes the frames. `num_blocks`: the size, instead of `kv_memory`, of one rank of several. `model_limit` is
    the longest sequence that the model allows. If `max_model_len` is None, the limit shrinks to the cache's capacity.
    Raises MemoryLimitError with the numbers if the size is more than usable, or the cache does not hold a sequence of
    `max_model_len` tokens (of two blocks, if None), UsageError if `max_model_len` exceeds the model's limit.
    """
    check_length(max_model_len, model_limit)
    each = "" if num_blocks is None else " on each rank"
    if num_blocks is not None:
        if (wanted := num_blocks * layout.block_bytes) > room.usable:
            raise MemoryLimitError(
                f"the part of the KV cache on this rank needs {_size(wanted)}, but {_size(room.usable)} are usable: "
                f"{room}; lower --kv-memory, --max-batch-tokens or --max-sequences, or raise the memory limit"
            )
    elif kv_memory is not None:
        wanted = parse_size(kv_memory, room.usable)
        share = is_share(kv_memory)
        num_blocks = _blocks_within(wanted, layout.block_bytes, staging) if share else wanted // layout.block_bytes
        beside = 0 if share else staging(num_blocks)
        if wanted + beside > room.usable:
            raise MemoryLimitError(
                f"--kv-memory {kv_memory} needs {_size(wanted)}{_and_staging(beside)}, but {_size(room.usable)} are "
                f"usable: {room}; lower --kv-memory, --max-batch-tokens or --max-sequences, or raise the memory limit"
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
            f"{_size(blocks * layout.block_bytes)} ({blocks} blocks of {layout.block_bytes} bytes){each}"
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
    """Return the budget of a grant: `kv` bytes at the start, later from `least` to `most` bytes.

    If `max_model_len` is None, the limit is the capacity of `least`. Raises MemoryLimitError if `least` does not hold a
    sequence of that length (of two blocks, if None), UsageError if a length exceeds the model's limit.
    """
    check_length(max_model_len, model_limit)
    block_bytes = layout.block_bytes
    need = max_model_len or min(model_limit, 2 * layout.block_size)
    capacity = _capacity(least // block_bytes, layout, max_model_len or model_limit)
    if capacity < need:
        blocks = _blocks_of(need, layout)
        raise MemoryLimitError(
            f"the {least} bytes that are always granted to the KV cache hold {capacity} tokens, but a "
            f"sequence may have {need}: grant {blocks * block_bytes} bytes ({blocks} blocks of {block_bytes}), or "
            "lower --max-model-len"
        )
    return _budget(layout, kv // block_bytes, most // block_bytes, max_model_len or capacity)


def no_kv_cache(config: EngineConfig, facts: Facts) -> KvBudget:
    """Return the budget of a model without KV cache: blocks of no bytes, so many that only slots limit running
    sequences.

    A block of an encoder holds a whole prompt. Those of a decoder only say which tokens were computed: enough for all
    sequences that may run, for one more of each that the scheduler reserves for its next token, for the tokens of a
    step, and some for prefixes of earlier sequences.
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
    """Return the bytes of the smallest usable cache: one sequence of the limit, or of two blocks without a limit."""
    return _blocks_of(max_model_len or min(model_limit, 2 * layout.block_size), layout) * layout.block_bytes


def most_kv_bytes(sequences: int, longest: int, layout: KvLayout) -> int:
    """Return the bytes of a cache for `sequences` sequences of `longest` tokens."""
    return (sequences * (_blocks_of(longest, layout) - 1) + 1) * layout.block_bytes


def longest_held(kv_bytes: int, layout: KvLayout, limit: int) -> int:
    """Return the most tokens, up to `limit`, of a single sequence in `kv_bytes` bytes; at least one."""
    return max(1, _capacity(kv_bytes // layout.block_bytes, layout, limit))


def _budget(layout: KvLayout, num_blocks: int, most_blocks: int, longest: int) -> KvBudget:
    kv_bytes, least = num_blocks * layout.block_bytes, _blocks_of(longest, layout)
    return KvBudget(num_blocks, longest, kv_bytes, least, most_blocks, layout.block_size, layout.rules)


def _blocks_of(tokens: int, layout: KvLayout) -> int:
    """Return the blocks of a sequence of `tokens` tokens, including the padding block."""
    return sequence_blocks(layout.rules, tokens, layout.block_size) + 1


def _capacity(num_blocks: int, layout: KvLayout, limit: int) -> int:
    """Return the most tokens, up to `limit`, of a single sequence in `num_blocks` blocks including the padding
    block.
    """
    return longest_within(layout.rules, num_blocks - 1, layout.block_size, limit)


def _blocks_within(total: int, block_bytes: int, staging: Callable[[int], int]) -> int:
    """Return the most blocks that `total` bytes hold together with their frames."""
    counts = range(1, total // block_bytes + 1)
    return bisect_right(counts, total, key=lambda count: count * block_bytes + staging(count))


def _and_staging(size: int) -> str:
    return f" and {_size(size)} of frames between it and --kv-disk" if size else ""


def _size(size: int) -> str:
    """Return a size in GiB, or in MiB if it is below 1 GiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"
