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


def kill_container(word: str, pod: str) -> None:
    """Kill the main process of the container in the pod with uid `pod` that has this word in its command line. The
    kernel then ends all processes of the container.
    """
    [main] = [pid for pid in _found(word, f"/pod{pod}/") if _is_main(pid)]
    os.kill(main, signal.SIGKILL)


def count(word: str) -> int:
    """Return the number of processes in the cluster's containers with this word in their command line."""
    return len(_found(word))


def _found(word: str, pod: str = "") -> list[int]:
    marks = (f"/plimsoll-{find_layout(os.environ, Path.home()).identity}/", pod)
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _is_meant(entry, word, marks)]


def _is_meant(entry: Path, word: str, marks: tuple[str, ...]) -> bool:
    """Return whether a process has the word in its command line, and all marks in the names of its control groups."""
    try:
        groups = (entry / "cgroup").read_text()
        return word.encode() in (entry / "cmdline").read_bytes() and all(mark in groups for mark in marks)
    except OSError:  # it has just ended
        return False


def _is_main(pid: int) -> bool:
    """Return whether a process is number 1 of its container."""
    try:
        lines = (Path("/proc") / str(pid) / "status").read_text().splitlines()
    except OSError:  # it has just ended
        return False
    return any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in lines)
