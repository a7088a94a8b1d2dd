"""Opens the tiers that options request: their frames, and the fingerprint of blocks on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from plimsoll_kernels.cpu.compile import library_path
from plimsoll_kernels.cpu.library import kernels
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.kv.offload.index import TierIndex
from plimsoll_runtime.errors import MemoryLimitError, UsageError
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.block_files import BlockFolder
from plimsoll_runtime.execution.kv.offload.disk_store import DiskStore
from plimsoll_runtime.execution.kv.offload.host_memory import HostBlocks, host_bytes
from plimsoll_runtime.execution.memory.kv_budget import free_memory, no_staging
from plimsoll_runtime.utils.sizes import is_share, parse_size
from plimsoll_runtime.version import VERSION
from plimsoll_runtime.weights.files import ModelFiles, opened

HEAD_BYTES = 1 << 16


def fingerprint(files: ModelFiles, cache: KvCache, backend: str, *, fused: bool) -> bytes:
    """Return 32 bytes that change with the weights, their precision, the layout of a block, and the code that computes
    it.

    Weights count by size, modification time and first bytes of their files: hashing all of them takes as long as
    loading. The C++ CPU kernels order the contents of a block in their own way, so their sources count too, and their
    instruction set, which changes rounding.
    """
    ours = kernels(cache.dtype) if fused else None
    facts = {
        "version": VERSION,
        "config": dict(files.config),
        "weights": [_file(path) for path in files.weights],
        "dtype": str(cache.dtype),
        "block_size": cache.block_size,
        "shapes": [(shape.kv_heads, shape.head_dim, shape.cached_width) for shape in cache.shapes],
        "groups": cache.groups,
        "backend": backend,
        "kernels": None if ours is None else [library_path().name, ours.name.decode()],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).digest()


def _file(path: Path) -> tuple[str, int, int, str]:
    status = path.stat()
    with opened(path) as file:
        head = hashlib.sha256(file.read(HEAD_BYTES)).hexdigest()
    return path.name, status.st_size, status.st_mtime_ns, head


SHARE = 8
LEAST = 16
MOST_BYTES = 1 << 30
"""One frame for each SHARE blocks of the cache, at least LEAST, and at most as many as fit in MOST_BYTES."""


def staging_frames(num_blocks: int, block_bytes: int) -> int:
    """Return the number of frames for a cache of `num_blocks` blocks.

    They limit how much of a prompt can be restored at once. On a CPU they take memory of the KV cache's budget.
    """
    return max(LEAST, min(num_blocks // SHARE, MOST_BYTES // block_bytes))


def staging_bytes(num_blocks: int, block_bytes: int) -> int:
    """Return the bytes of `staging_frames` frames. They grow with the number of blocks."""
    return host_bytes(staging_frames(num_blocks, block_bytes), block_bytes)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tiers:
    """The tiers: the scheduler's index, and the runner's frames."""

    index: TierIndex
    host: HostBlocks


def check_tier_options(config: EngineConfig, device: torch.device) -> None:
    """Raise UsageError if the options for tiers contradict each other or do not fit the device."""
    asked = [
        name for name, value in (("--kv-host-memory", config.kv_host_memory), ("--kv-disk", config.kv_disk)) if value
    ]
    if asked and not config.prefix_caching:
        raise UsageError(f"{asked[0]} needs prefix caching, but --no-prefix-caching is set; remove one of them")
    if (config.kv_disk is None) != (config.kv_disk_size is None):
        raise UsageError("--kv-disk PATH and --kv-disk-size SIZE need each other: the folder of blocks, and its size")
    if config.kv_host_memory is not None and device.type == "cpu":
        raise UsageError(
            "--kv-host-memory is for GPUs: on a CPU the KV cache is in host memory already; "
            "give that memory to --kv-memory instead"
        )


def open_tiers(
    config: EngineConfig, files: ModelFiles, cache: KvCache, backend: type[AttentionBackend]
) -> Tiers | None:
    """Open the tiers of a cache; return None if none is requested, or the only one is a disk that cannot be used.

    The options have passed `check_tier_options`. Raises UsageError for an impossible path or size, MemoryLimitError if
    host memory is too small.
    """
    disk = _open_disk(config, files, cache, backend)
    if config.kv_host_memory is None and disk is None:
        return None
    with ExitStack() as undo:
        if disk is not None:
            undo.callback(disk.folder.close)
        host = HostBlocks(cache, _frames(config, cache))
        undo.pop_all()
    if disk is None:
        return Tiers(TierIndex(host.frames, keeps=True, copies=host.copies), host)
    keeps, store = config.kv_host_memory is not None, DiskStore(disk.folder, host)
    index = TierIndex(host.frames, disk.blocks, store, keeps=keeps, copies=host.copies)
    logger.info(
        "KV cache: %d of %d blocks in %s are from an earlier run; %d frames of host memory for it, %.2f GiB",
        index.disk_used,
        disk.blocks,
        disk.folder.path,
        host.frames,
        host_bytes(host.frames, cache.block_bytes) / 2**30,
    )
    return Tiers(index, host)


def staging_beside(config: EngineConfig, device: torch.device, block_bytes: int) -> Callable[[int], int]:
    """Return a function from a number of cache blocks to the bytes of `staging_frames` in the device's memory.

    These are 0 without a disk, and on a GPU, whose frames are in host memory.
    """
    if config.kv_disk is None or device.type != "cpu":
        return no_staging
    return partial(staging_bytes, block_bytes=block_bytes)


def _frames(config: EngineConfig, cache: KvCache) -> int:
    """Return the number of frames: those of --kv-host-memory, or those for a disk. On a CPU they are a part of the KV
    cache's budget.

    For a GPU, raises MemoryLimitError if free host memory does not hold them, or --kv-host-memory is below two blocks.
    """
    free = free_memory(torch.device("cpu"))
    if config.kv_host_memory is None:
        frames = staging_frames(cache.num_blocks, cache.block_bytes)
        need = host_bytes(frames, cache.block_bytes)
        if cache.device.type != "cpu" and need > free:
            raise MemoryLimitError(
                f"--kv-disk needs {need / 2**30:.2f} GiB of host memory for {frames} frames between GPU and disk, "
                f"but {free / 2**30:.2f} GiB are free; raise the memory limit or lower --kv-memory"
            )
        return frames
    wanted = parse_size(config.kv_host_memory, free)
    frames = wanted // cache.block_bytes - 1
    if wanted > free or frames < 1:
        raise MemoryLimitError(
            f"--kv-host-memory {config.kv_host_memory} is {wanted / 2**30:.2f} GiB; it must be at least two blocks of "
            f"{cache.block_bytes} bytes and at most the {free / 2**30:.2f} GiB that are free"
        )
    return frames


class _Disk(NamedTuple):
    """A folder, and the number of blocks that it may hold."""

    folder: BlockFolder
    blocks: int


def _open_disk(
    config: EngineConfig, files: ModelFiles, cache: KvCache, backend: type[AttentionBackend]
) -> _Disk | None:
    """Open the disk tier; log a warning and return None if the disk cannot be used, because it is only a cache."""
    if config.kv_disk is None or config.kv_disk_size is None:
        return None
    root = Path(config.kv_disk).expanduser()
    try:
        with ExitStack() as undo:
            folder = BlockFolder(root, fingerprint(files, cache, backend.name, fused=backend.fused))
            undo.callback(folder.close)
            if blocks := _blocks(config.kv_disk_size, folder, cache.block_bytes):
                undo.pop_all()
                return _Disk(folder, blocks)
        logger.warning("the KV cache has no disk tier: --kv-disk %s has no space for a block", root)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"--kv-disk {root} is not a folder: {error}") from error
    except OSError as error:
        logger.warning("the KV cache has no disk tier: cannot use --kv-disk %s: %s", root, error)
    return None


def _blocks(asked: str, folder: BlockFolder, block_bytes: int) -> int:
    """Return the number of blocks for a disk of the requested size, or as many as fit if it is too full.

    Raises UsageError only for sizes that can never fit. A size above the free space is no error: free space changes
    from one start to the next, and a restarted server must not fail because of a disk that it can do without. Blocks of
    an earlier run in this folder are taken over, so they count as free.
    """
    each, disk = folder.file_bytes(block_bytes), shutil.disk_usage(folder.path)
    kept = len(folder.names()) * each
    wanted = parse_size(asked, disk.free + kept)
    if wanted > disk.total or (wanted < each and not is_share(asked)):
        raise UsageError(
            f"--kv-disk-size {asked} is {wanted} bytes; it must be at least a block's {each} and at most the "
            f"{disk.total} ({disk.total / 2**30:.2f} GiB) of the whole disk of {folder.path.parent}"
        )
    if wanted > disk.free + kept:
        logger.warning(
            "--kv-disk-size %s exceeds the %.2f GiB that are free on the disk of %s plus the %.2f GiB of this engine's "
            "blocks there; using only their sum",
            asked,
            disk.free / 2**30,
            folder.path.parent,
            kept / 2**30,
        )
    return min(wanted, disk.free + kept) // each
