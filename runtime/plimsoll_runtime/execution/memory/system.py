"""Memory of the container, by its cgroups, and of a process."""

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
    """Bytes left under the tightest limit (v2 or v1); None where there is no limit.

    Pages of files count as used, in the cgroup that read them first, but the kernel gives them up before it kills:
    those that nobody has mapped are left, and with `mapped` the others too, as in the machine's MemAvailable.
    """
    found = (_left(folder, version, mapped=mapped) for folder, version in _folders(root, own))
    return min((left for left in found if left is not None), default=None)


def cgroup_limit(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Bytes of the tightest limit (v2 or v1); None where there is none."""
    found = [limit for folder, version in _folders(root, own) for limit in _limits(folder, version)]
    return min(found, default=None)


def _folders(root: Path, own: Path) -> Iterator[tuple[Path, _Version]]:
    """The process's own cgroup and all above it, in either version.

    In a container the path is often the host's and does not exist inside: then the root is the container's own.
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
    """Controllers ("" for version 2) and path of each line `number:controllers:path`."""
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
    """Bytes of files' pages; without `mapped` at least those that somebody has mapped are not among them.

    What the kernel counts as mapped has the memory that processes share, too, which is on neither list of files.
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
    """Bytes that are resident now.

    `anonymous` goes with the process, unless it shares pages of it with those that it was forked from (see
    `private_bytes`). `files` are pages of libraries, which processes share and the
    kernel gives up first. `shared` are images, counted in each process that maps them.
    """

    anonymous: int
    files: int
    shared: int


def footprint(pid: int | None = None) -> Footprint:
    """Of a process, or of this one. Raises OSError when there is no such process, or it is over."""
    found = dict.fromkeys(_FIELDS.values(), 0)
    for line in Path(f"/proc/{'self' if pid is None else pid}/status").read_bytes().splitlines():
        name, _, value = line.partition(b":")
        if name in _FIELDS:
            found[_FIELDS[name]] = int(value.split()[0]) * _KIB
    return Footprint(**found)


def private_bytes(pid: int | None = None) -> int:
    """Bytes that a process, or this one, has written to and no other maps: what one more process like it costs.

    Of a process that maps no image yet: a page of an image that nobody else maps counts too.
    Raises OSError when there is no such process, or it is over. It takes some milliseconds.
    """
    rollup = Path(f"/proc/{'self' if pid is None else pid}/smaps_rollup").read_bytes()
    return next(int(line.split()[1]) * _KIB for line in rollup.splitlines() if line.startswith(b"Private_Dirty:"))
