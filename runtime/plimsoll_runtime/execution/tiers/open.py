"""Opens the tiers that were asked for: host memory behind a GPU, a disk behind either."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.tiers.index import TierIndex
from plimsoll_runtime.errors import MemoryLimitError, UsageError
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.memory import free_memory
from plimsoll_runtime.execution.tiers.fingerprint import fingerprint
from plimsoll_runtime.execution.tiers.folder import BlockFolder
from plimsoll_runtime.execution.tiers.host import HostBlocks
from plimsoll_runtime.execution.tiers.store import DiskStore
from plimsoll_runtime.sizes import parse_size
from plimsoll_runtime.weights.files import ModelFiles

logger = logging.getLogger(__name__)

STAGING_SHARE = 8
LEAST_STAGING = 16
MOST_STAGING_BYTES = 1 << 30
"""Slots between device and disk where host memory is no tier: one for so many blocks of the pool, within these bounds.

They bound how much of a prompt can come back at once.
"""


@dataclass(frozen=True, slots=True)
class Tiers:
    """The scheduler's side of the tiers, and the runner's."""

    index: TierIndex
    host: HostBlocks


def check_options(config: EngineConfig, device: torch.device) -> None:
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

    The options have passed `check_options`. Raises UsageError where a path or size cannot be, MemoryLimitError where
    host memory has not what was asked for.
    """
    folder = None if config.kv_disk is None else _open_folder(Path(config.kv_disk).expanduser(), files, cache, backend)
    if config.kv_host_memory is None and folder is None:
        return None
    host = HostBlocks(cache, _slots(config, cache))
    if folder is None or config.kv_disk_size is None:
        return Tiers(TierIndex(host.slots, keeps=True), host)
    left = len(folder.names()) * cache.block_bytes
    places = parse_size(config.kv_disk_size, left + shutil.disk_usage(folder.path).free) // cache.block_bytes
    if not places:
        raise UsageError(f"--kv-disk-size {config.kv_disk_size} is less than a block of {cache.block_bytes} bytes")
    store = DiskStore(folder, host)
    index = TierIndex(host.slots, places, store, keeps=config.kv_host_memory is not None)
    logger.info("KV cache: %d of %d blocks in %s, from an earlier run", index.disk_used, places, folder.path)
    return Tiers(index, host)


def _slots(config: EngineConfig, cache: KvCache) -> int:
    if config.kv_host_memory is None:
        return max(LEAST_STAGING, min(cache.num_blocks // STAGING_SHARE, MOST_STAGING_BYTES // cache.block_bytes))
    free = free_memory(torch.device("cpu"))
    wanted = parse_size(config.kv_host_memory, free)
    slots = wanted // cache.block_bytes - 1
    if wanted > free or slots < 1:
        raise MemoryLimitError(
            f"--kv-host-memory {config.kv_host_memory} is {wanted / 2**30:.2f} GiB; it must be at least two blocks of "
            f"{cache.block_bytes} bytes and at most the {free / 2**30:.2f} GiB that are free"
        )
    return slots


def _open_folder(root: Path, files: ModelFiles, cache: KvCache, backend: type[AttentionBackend]) -> BlockFolder | None:
    """None, with a warning, where the disk does not let us: it is a cache, and requests can do without."""
    try:
        return BlockFolder(root, fingerprint(files, cache, backend.name, fused=backend.fused))
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"--kv-disk {root} is not a folder: {error}") from error
    except OSError as error:
        logger.warning("the KV cache goes without a disk: --kv-disk %s cannot be used: %s", root, error)
        return None
