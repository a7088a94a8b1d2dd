"""The disk that images and nodes share with everything else on this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from cluster.errors import ClusterError

GIB = 2**30
LEAST = 2 * GIB
"""Below this a cluster does not start: etcd ends on a full disk, and kubelets evict at 1 GiB."""
PLENTY = 40 * GIB
"""Below this, layers of earlier builds are removed before one more is made."""


def free(folder: Path) -> int:
    """Bytes that may still be written where a folder is, or will be."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    return shutil.disk_usage(there).free


def require(folder: Path, needed: int, what_for: str) -> None:
    """Raises ClusterError where fewer bytes than these are free."""
    left = free(folder)
    if left < needed:
        raise ClusterError(
            f"{what_for} needs {needed / GIB:.0f} GiB of disk, and {folder} has {left / GIB:.1f} left: make room and "
            "try again (other clusters on this machine, virtual environments, ~/.cache/plimsoll, ~/.cache/go-build)"
        )
