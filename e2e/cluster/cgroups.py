"""The control groups of a cluster: one tree per machine of the cluster, in every hierarchy of the host's kernel.

With cgroup v1 the kubelet needs a hierarchy for every controller in /proc/cgroups. Missing ones are mounted in the
machine's own mount namespace. Such a hierarchy outlives its mount as long as it has a group, so it is mounted again to
be emptied.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.mounts import replace
from cluster.shell import run

ROOT = Path("/sys/fs/cgroup")
REMOVE_SECONDS = 20.0
SETTLE_SECONDS = 1.0


def group_counts(proc_cgroups: str) -> dict[str, int]:
    """Return the number of groups (including the root) of each enabled controller, from the text of /proc/cgroups."""
    rows = [line.split() for line in proc_cgroups.splitlines() if not line.startswith("#")]
    return {name: int(groups) for name, _hierarchy, groups, enabled in rows if enabled == "1"}


def mounted_hierarchies(mountinfo: str) -> dict[Path, set[str]]:
    """Return mount point -> options (which include the controllers) of every v1 hierarchy in /proc/self/mountinfo."""
    found = {}
    for line in mountinfo.splitlines():
        mount, _, tail = line.partition(" - ")
        kind, _source, options = tail.split(" ", 2)
        if kind == "cgroup":
            found[Path(mount.split()[4])] = set(options.split(","))
    return found


def is_unified() -> bool:
    """Return whether the host has only cgroup v2."""
    return (ROOT / "cgroup.controllers").exists()


@dataclass(frozen=True)
class Hierarchies:
    """Mount points of cgroup hierarchies: `found` were mounted by the host, `added` by `complete`."""

    found: tuple[Path, ...]
    added: tuple[Path, ...] = ()

    def __iter__(self) -> Iterator[Path]:
        return iter(self.found + self.added)


def complete() -> Hierarchies:
    """Mount the cgroup v1 hierarchies that the host lacks, in the caller's own mount namespace. Return the host's and
    the mounted ones. With cgroup v2 there is one hierarchy, and nothing is mounted.
    """
    if is_unified():
        return Hierarchies(found=(ROOT,))
    mounted = mounted_hierarchies(Path("/proc/self/mountinfo").read_text())
    controllers = group_counts(Path("/proc/cgroups").read_text())
    missing = [name for name in controllers if not any(name in options for options in mounted.values())]
    links = [(path, path.readlink()) for path in ROOT.iterdir() if path.is_symlink()]
    replace([ROOT], {path: path for path in mounted if path.is_relative_to(ROOT)})
    for path, target in links:
        path.symlink_to(target)
    for name in missing:
        (ROOT / name).mkdir()
        run(["mount", "-t", "cgroup", "-o", name, "cgroup", ROOT / name])
    return Hierarchies(tuple(mounted), tuple(ROOT / name for name in missing))


def create(hierarchies: Hierarchies, group: Path) -> None:
    """Create a group, such as `plimsoll-1a2b3c4d/n1`, in each hierarchy."""
    for hierarchy in hierarchies:
        folder = hierarchy
        for part in group.parts:
            delegate(folder)
            folder = folder / part
            folder.mkdir(exist_ok=True)
            fill_cpuset(folder)


def delegate(folder: Path) -> None:
    """On cgroup v2, let groups below a folder use every controller of the folder."""
    if not (folder / "cgroup.controllers").exists():
        return
    names = (folder / "cgroup.controllers").read_text().split()
    (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in names))


def fill_cpuset(folder: Path) -> None:
    """On cgroup v1, copy processors and memory nodes to a new group, which accepts no process without them."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (folder / name).exists() and not is_unified():
            (folder / name).write_text((folder.parent / name).read_text())


def remove(hierarchies: Hierarchies, group: Path) -> None:
    """Remove a group and all groups below it. Raises ClusterError if one stays in use."""
    deadline = time.monotonic() + REMOVE_SECONDS
    for hierarchy in hierarchies:
        for folder, _, _ in os.walk(hierarchy / group, topdown=False):
            remove_empty(Path(folder), deadline)


def remove_empty(folder: Path, deadline: float) -> None:
    """Remove one group, with retries because its last processes may still be exiting. Raises ClusterError at
    `deadline`.
    """
    while True:
        try:
            folder.rmdir()
        except OSError as error:
            if time.monotonic() > deadline:
                raise ClusterError(f"cannot remove the control group {folder}: {error}") from error
            time.sleep(0.05)
        else:
            return


def settle(hierarchies: Hierarchies) -> None:
    """Wait, for at most SETTLE_SECONDS, until the kernel has freed all groups of the hierarchies that `complete` has
    mounted.

    The kernel frees a group some time after its removal, and dismantles a hierarchy only if it has no groups when it is
    unmounted. If other users have groups in a hierarchy, the wait times out.
    """
    names = {path.name for path in hierarchies.added}
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        counts = group_counts(Path("/proc/cgroups").read_text())
        if all(count == 1 for name, count in counts.items() if name in names):
            return
        time.sleep(0.05)
