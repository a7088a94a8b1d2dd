"""Kills processes of this machine's own cluster with SIGKILL from outside, like a crash."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cluster.layout import find_layout


def kill(word: str) -> int:
    """Kill each process in the cluster's containers with this word in its command line. Return how many were killed."""
    found = _found(word)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return len(found)


def count(word: str) -> int:
    """Return the number of processes in the cluster's containers with this word in their command line."""
    return len(_found(word))


def _found(word: str) -> list[int]:
    mark = f"/plimsoll-{find_layout(os.environ, Path.home()).identity}/"
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _is_meant(entry, word, mark)]


def _is_meant(entry: Path, word: str, mark: str) -> bool:
    try:
        return word.encode() in (entry / "cmdline").read_bytes() and mark in (entry / "cgroup").read_text()
    except OSError:  # it has just ended
        return False
