"""Free space on the disk that images and nodes share with everything else on the host."""

from __future__ import annotations

import shutil
from pathlib import Path

from cluster.errors import ClusterError

GIB = 2**30
LEAST = 2 * GIB
"""A cluster does not start with less: etcd exits on a full disk, and kubelets evict at 1 GiB."""
PLENTY = 40 * GIB
"""With less, layers of earlier builds are removed before the next build."""


def free(folder: Path) -> int:
    """Return the free bytes of the disk on which a folder is, or will be created."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    return shutil.disk_usage(there).free


def require(folder: Path, needed: int, what_for: str) -> None:
    """Raise ClusterError if less than `needed` bytes are free on the folder's disk."""
    left = free(folder)
    if left < needed:
        raise ClusterError(
            f"{what_for} needs {needed / GIB:.0f} GiB of disk, but {folder} has {left / GIB:.1f} GiB free; delete "
            "files (other clusters on this machine, virtual environments, ~/.cache/plimsoll, ~/.cache/go-build) and "
            "try again"
        )
