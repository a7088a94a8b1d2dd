"""Opens the tiers that the options ask for: their frames, and the fingerprint of blocks on disk."""

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
    """32 bytes that change with the weights, their precision, the layout of a block, and the code that computes it.

    Weights count by size, time of change and first bytes of their files: reading them whole takes as long as loading
    them. Our CPU kernels keep an order of their own within a block, so their sources count too, and their instructions,
    which round differently.
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
"""One frame for so many blocks of the cache, within these bounds."""


def staging_frames(num_blocks: int, block_bytes: int) -> int:
    """Frames for a cache of so many blocks.

    They bound how much of a prompt can be restored at once. On a CPU they take memory of the KV cache's budget.
    """
    return max(LEAST, min(num_blocks // SHARE, MOST_BYTES // block_bytes))


def staging_bytes(num_blocks: int, block_bytes: int) -> int:
    """Bytes of those frames. They grow with the blocks."""
    return host_bytes(staging_frames(num_blocks, block_bytes), block_bytes)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tiers:
    """The scheduler's side of the tiers, and the runner's."""

    index: TierIndex
    host: HostBlocks


def check_tier_options(config: EngineConfig, device: torch.device) -> None:
    """Raises UsageError where the options for tiers make no sense together or on this device."""
    asked = [
        name for name, value in (("--kv-host-memory", config.kv_host_memory), ("--kv-disk", config.kv_disk)) if value
    ]
    if asked and not config.prefix_caching:
        raise UsageError(f"{asked[0]} keeps cached prefixes, and --no-prefix-caching forbids them; leave one away")
    if (config.kv_disk is None) != (config.kv_disk_size is None):
        raise UsageError("--kv-disk PATH and --kv-disk-size SIZE go together: where blocks are kept, and how much")
    if config.kv_host_memory is not None and device.type == "cpu":
        raise UsageError(
            "--kv-host-memory is for GPUs: on a CPU the KV cache lies in host memory already; "
            "give that memory to --kv-memory instead"
        )


def open_tiers(
    config: EngineConfig, files: ModelFiles, cache: KvCache, backend: type[AttentionBackend]
) -> Tiers | None:
    """The tiers behind a cache; None where none was asked for, or the only one is a disk that cannot be used.

    The options have passed `check_tier_options`. Raises UsageError where a path or size cannot be, MemoryLimitError
    where host memory has not what was asked for.
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
        "KV cache: %d of %d blocks in %s, from an earlier run; %d frames of host memory before it, %.2f GiB",
        index.disk_used,
        disk.blocks,
        disk.folder.path,
        host.frames,
        host_bytes(host.frames, cache.block_bytes) / 2**30,
    )
    return Tiers(index, host)


def staging_beside(config: EngineConfig, device: torch.device, block_bytes: int) -> Callable[[int], int]:
    """What so many blocks of a cache want in the device's own memory for frames between them and the disk."""
    if config.kv_disk is None or device.type != "cpu":
        return no_staging
    return partial(staging_bytes, block_bytes=block_bytes)


def _frames(config: EngineConfig, cache: KvCache) -> int:
    """As many as host memory was asked for, or as stand before a disk; on a CPU those are in the cache's budget."""
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
    """A folder, and how many blocks it may hold."""

    folder: BlockFolder
    blocks: int


def _open_disk(
    config: EngineConfig, files: ModelFiles, cache: KvCache, backend: type[AttentionBackend]
) -> _Disk | None:
    """None, with a warning, where the disk does not let us: it is a cache, and requests can do without."""
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
        logger.warning("the KV cache goes without a disk: there is no room for a block on --kv-disk %s", root)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"--kv-disk {root} is not a folder: {error}") from error
    except OSError as error:
        logger.warning("the KV cache goes without a disk: --kv-disk %s cannot be used: %s", root, error)
    return None


def _blocks(asked: str, folder: BlockFolder, block_bytes: int) -> int:
    """How many blocks a disk of this size is to hold: what it can, where others have filled it.

    Refused (UsageError) is what can never be. More than is free now is not: that changes from one start to the next,
    and a server that is started again must not fail because somebody has filled a disk that it can do without. What an
    earlier run left in our folder is taken over, so it counts as free.
    """
    each, disk = folder.file_bytes(block_bytes), shutil.disk_usage(folder.path)
    kept = len(folder.names()) * each
    wanted = parse_size(asked, disk.free + kept)
    if wanted > disk.total or (wanted < each and not is_share(asked)):
        raise UsageError(
            f"--kv-disk-size {asked} is {wanted} bytes; it must be at least a block's {each} and at most the "
            f"{disk.total} ({disk.total / 2**30:.2f} GiB) that the disk of {folder.path.parent} has in all"
        )
    if wanted > disk.free + kept:
        logger.warning(
            "--kv-disk-size %s is more than the %.2f GiB that are free on the disk of %s and the %.2f GiB that our own "
            "blocks hold there: they get no more than that",
            asked,
            disk.free / 2**30,
            folder.path.parent,
            kept / 2**30,
        )
    return min(wanted, disk.free + kept) // each
