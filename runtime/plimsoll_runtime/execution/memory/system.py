"""Memory of the container, read from its cgroups, and of a process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class _Version:
    """The names of a cgroup version's files and counters."""

    limits: tuple[str, ...]
    usage: str
    prefix: str


_V1 = _Version(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_")
_V2 = _Version(("memory.max", "memory.high"), "memory.current", "")


def cgroup_left(root: Path = ROOT, own: Path = OWN, *, mapped: bool = False) -> int | None:
    """Return the bytes left under the tightest limit (v2 or v1); None without a limit.

    Page cache counts as used, in the cgroup that read it first, but the kernel frees it before it kills a process:
    unmapped pages count as left, and if `mapped` the mapped ones too, as in the machine's MemAvailable.
    """
    found = (_left(folder, version, mapped=mapped) for folder, version in _folders(root, own))
    return min((left for left in found if left is not None), default=None)


def cgroup_limit(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Return the bytes of the tightest limit (v2 or v1); None without a limit."""
    found = [limit for folder, version in _folders(root, own) for limit in _limits(folder, version)]
    return min(found, default=None)


def _folders(root: Path, own: Path) -> Iterator[tuple[Path, _Version]]:
    """Yield the process's own cgroup and all above it, in both versions.

    In a container the path is often the host's and does not exist inside; then the root is the container's own.
    """
    for controllers, path in memberships(own):
        version, top = (_V2, root) if controllers == "" else (_V1, root / "memory")
        if controllers != "" and "memory" not in controllers.split(","):
            continue
        folder = top / path.lstrip("/")
        while folder != top and top in folder.parents:
            yield folder, version
            folder = folder.parent
    yield root, _V2
    yield root / "memory", _V1


def memberships(own: Path) -> Iterator[tuple[str, str]]:
    """Yield controllers ("" for version 2) and path of each line `number:controllers:path`."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if ".." not in path:
            yield controllers, path


def _left(folder: Path, version: _Version, *, mapped: bool) -> int | None:
    limits = _limits(folder, version)
    usage = _read_bytes(folder / version.usage)
    if not limits or usage is None:
        return None
    return max(0, min(limits) - usage + _reclaimable(folder / "memory.stat", version.prefix, mapped=mapped))


def _limits(folder: Path, version: _Version) -> list[int]:
    return [limit for name in version.limits if (limit := _read_bytes(folder / name)) is not None]


def _reclaimable(path: Path, prefix: str, *, mapped: bool) -> int:
    """Return the bytes of page cache that the kernel can free; without `mapped`, mapped pages are subtracted.

    The kernel's count of mapped pages includes shared memory, which is in neither of the two file lists.
    """
    try:
        rows = [row.split() for row in path.read_text().splitlines()]
    except OSError:
        return 0
    counters = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
    pages = sum(counters.get(f"{prefix}{kind}_file", 0) for kind in ("inactive", "active"))
    in_use = 0 if mapped else counters.get("file_mapped", counters.get(f"{prefix}mapped_file", 0))
    return max(0, pages - in_use)


def _read_bytes(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


_FIELDS = {b"RssAnon": "anonymous", b"RssFile": "files", b"RssShmem": "shared"}
_KIB = 1024


class Footprint(NamedTuple):
    """Resident bytes of a process.

    `anonymous` is freed with the process, except pages that it shares with the processes that it was forked from (see
    `private_bytes`). `files` are pages of libraries, which processes share and the kernel frees first. `shared` are
    weight images, counted in each process that maps them.
    """

    anonymous: int
    files: int
    shared: int


def footprint(pid: int | None = None) -> Footprint:
    """Return the footprint of a process, by default this one. Raises OSError if it does not exist."""
    found = dict.fromkeys(_FIELDS.values(), 0)
    for line in Path(f"/proc/{'self' if pid is None else pid}/status").read_bytes().splitlines():
        name, _, value = line.partition(b":")
        if name in _FIELDS:
            found[_FIELDS[name]] = int(value.split()[0]) * _KIB
    return Footprint(**found)


def private_bytes(pid: int | None = None) -> int:
    """Return the bytes that a process (by default this one) has written and no other maps: the cost of one more like
    it.

    For a process without a weight image: pages of an image that no other process maps count too. Takes some
    milliseconds. Raises OSError if the process does not exist.
    """
    rollup = Path(f"/proc/{'self' if pid is None else pid}/smaps_rollup").read_bytes()
    return next(int(line.split()[1]) * _KIB for line in rollup.splitlines() if line.startswith(b"Private_Dirty:"))
