"""A control group that limits the memory of one process, like a kubelet's (cgroup v1 or v2)."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from cluster.cgroups import ROOT, is_unified, mounted_hierarchies, remove_empty

REMOVE_SECONDS = 20.0


class NoGroupError(Exception):
    """No control group can be created; the message says why."""


class MemoryGroup:
    """A control group. The kernel kills its processes if they need more than the limit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, *command: str) -> list[str]:
        """Return `command` wrapped in a shell that enters the group before it starts the command."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *command]

    @property
    def kills(self) -> int:
        """Number of processes that the kernel has killed for memory."""
        file = "memory.events" if is_unified() else "memory.oom_control"
        counts = dict(line.split() for line in (self.folder / file).read_text().splitlines())
        return int(counts["oom_kill"])

    @property
    def peak(self) -> int:
        """Peak memory in bytes, including the kernel's own for these processes."""
        file = "memory.peak" if is_unified() else "memory.max_usage_in_bytes"
        return int((self.folder / file).read_text())


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """Create a group with a limit in bytes, without swap, and remove it at the end. Raises NoGroupError."""
    try:
        folder = _parent() / f"plimsoll-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
    except (OSError, StopIteration) as error:
        raise NoGroupError(f"no memory control group can be made here: {error or 'no hierarchy is mounted'}") from error
    try:
        _bound(folder, limit)
        yield MemoryGroup(folder)
    finally:
        remove_empty(folder, time.monotonic() + REMOVE_SECONDS)


def _parent() -> Path:
    if not is_unified():
        mounted = mounted_hierarchies(Path("/proc/self/mountinfo").read_text())
        return next(path for path, options in mounted.items() if "memory" in options)
    if "memory" not in (ROOT / "cgroup.subtree_control").read_text().split():
        (ROOT / "cgroup.subtree_control").write_text("+memory")
    return ROOT


def _bound(folder: Path, limit: int) -> None:
    if is_unified():
        (folder / "memory.max").write_text(str(limit))
        _write_if_there(folder / "memory.swap.max", 0)
        return
    (folder / "memory.limit_in_bytes").write_text(str(limit))
    _write_if_there(folder / "memory.memsw.limit_in_bytes", limit)


def _write_if_there(file: Path, value: int) -> None:
    """Write a file if it exists: kernels without swap accounting lack it."""
    if file.exists():
        file.write_text(str(value))
