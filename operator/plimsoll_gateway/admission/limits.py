"""Limits of one gateway: connections, held bytes and waiting requests, derived from its memory and open files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from plimsoll_gateway.admission.body_memory import MOST_HELD

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_V1, _V2 = "memory.limit_in_bytes", "memory.max"
MOST_FILES = 1 << 20


def memory_limit(root: Path = ROOT, own: Path = OWN) -> int:
    """Return the memory limit in bytes: the lowest of the process's cgroups and their parents (v1 or v2), else all
    memory.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits(root, own)])


def open_files() -> int:
    """Return the process's soft limit of open files, at most MOST_FILES."""
    return _files_of(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def raise_open_files() -> None:
    """Raise the soft limit of open files to the hard limit."""
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
        if text.isdigit():  # version 2 writes "max" for no limit
            yield int(text)


def _files(root: Path, own: Path) -> Iterator[Path]:
    """Yield the files that may contain a memory limit: of the root cgroup, then of the process's cgroups and their
    parents. In a container, its own cgroup is the visible root, whatever path the kernel reports.
    """
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


KIB, MIB = 1 << 10, 1 << 20
FILES, BATCHES = "/v1/files", "/v1/batches"
# The largest request body in bytes, by path. Other code derives its limits from these; none is above the runtime's own
# limit (tests/contract). A million tokens are about 4 MiB of text, or 8 MiB as numbers; OpenAI's embeddings are limited
# to 300,000.
BODY_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "/v1/chat/completions": 8 * MIB,
        "/v1/completions": 8 * MIB,
        "/v1/embeddings": 4 * MIB,
        "/v1/score": 4 * MIB,
        "/v1/rerank": 4 * MIB,
        "/v2/rerank": 4 * MIB,
        "/v1/classify": 4 * MIB,
        "/v1/responses": 8 * MIB,
        "/v1/responses/input_tokens": 8 * MIB,
        "/v1/messages": 8 * MIB,
        "/v1/messages/count_tokens": 8 * MIB,
        "/tokenize": 4 * MIB,
        "/detokenize": 8 * MIB,
        FILES: 512 * MIB,
        BATCHES: 64 * KIB,
    }
)
OTHER_BYTES = 64 * KIB
"""Limit for all other paths, which need no body."""
MODEL_PATHS = frozenset(BODY_BYTES) - {FILES, BATCHES}
"""Paths whose body names the model. If a replica does not offer a path, it answers so itself. Their bodies are held
until the response begins; files are streamed.
"""


HOLD_SECONDS = 10.0
CONNECTION_BYTES = 64 << 10
"""A stream needs about 50 KiB: its client's connection and the one to its replica."""
CONNECTIONS_SHARE = 0.5  # of the memory; bodies and the process itself use the rest
FILES_PER_CONNECTION = 2
OTHER_FILES = 128
WAKE_SECONDS = 300.0
"""Longer than a pod takes that is created, needs no image pull and reads some GB of weights."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one gateway.

    `body_bytes`: largest body of a request, by path.
    `held_bytes`: all held bodies together.
    `waiting`: waiting requests of one model; 0 means half of `connections`.
    `connections`: client connections; 0 means as many as memory and open files allow.
    `wake_seconds`: the longest wait for a replica; a streaming request waits `hold_seconds` of it without response
    headers.
    """

    body_bytes: Mapping[str, int] = field(default_factory=lambda: BODY_BYTES)
    held_bytes: int = MOST_HELD
    waiting: int = 0
    hold_seconds: float = HOLD_SECONDS
    wake_seconds: float = WAKE_SECONDS
    connections: int = 0

    def resolved(self) -> Limits:
        """Return these limits with zeros replaced by values for this machine."""
        connections = self.connections or connections_for(memory_limit(), open_files())
        return replace(self, connections=connections, waiting=self.waiting or max(1, connections // 2))


def connections_for(memory: int, files: int) -> int:
    """Return the number of connections that this much memory (bytes) and this many open files allow."""
    by_files = (files - OTHER_FILES) // FILES_PER_CONNECTION
    return max(1, min(int(memory * CONNECTIONS_SHARE) // CONNECTION_BYTES, by_files))
