"""What this process may use: the memory of its container, and how many files it may open."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_V1, _V2 = "memory.limit_in_bytes", "memory.max"
MOST_FILES = 1 << 20


def memory_limit(root: Path = ROOT, own: Path = OWN) -> int:
    """Bytes: the tightest limit of the process's cgroup and those above it (v2 or v1), or the machine's memory."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits(root, own)])


def open_files() -> int:
    """How many files the process may have open."""
    return _files_of(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def raise_open_files() -> None:
    """Make that as many as it may be made."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _files_of(soft) < _files_of(hard):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_files_of(hard), hard))


def _files_of(limit: int) -> int:
    return MOST_FILES if limit == resource.RLIM_INFINITY else min(limit, MOST_FILES)


def _limits(root: Path, own: Path) -> Iterator[int]:
    for file in _files(root, own):
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # version 2 says "max" where there is none
            yield int(text)


def _files(root: Path, own: Path) -> Iterator[Path]:
    """In a container its own cgroup is the root that it sees, whatever path the kernel tells."""
    yield root / _V2
    yield root / "memory" / _V1
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if ".." in path or (controllers and "memory" not in controllers.split(",")):
            continue
        top, name = (root / "memory", _V1) if controllers else (root, _V2)
        folder = top / path.lstrip("/")
        while folder != top and top in folder.parents:
            yield folder / name
            folder = folder.parent
