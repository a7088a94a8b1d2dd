"""Resident memory of a process, by what becomes of it when the process or the kernel is done with it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

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
