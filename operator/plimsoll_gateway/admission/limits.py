"""Limits of one gateway: its memory and open files, and from these connections, held bytes and waiting requests."""

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


KIB, MIB = 1 << 10, 1 << 20
FILES, BATCHES = "/v1/files", "/v1/batches"
# How many bytes the body of a request may have, by its path: the one home of these numbers, none above the runtime's
# own (tests/contract). A million tokens are some 4 MiB of text, or 8 MiB as numbers; OpenAI's embeddings stop at
# 300,000.
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
"""Of a request for any other path, which needs no body."""
MODEL_PATHS = frozenset(BODY_BYTES) - {FILES, BATCHES}
"""Those that name their model in the body. A replica that does not offer a path says so itself. Their bodies are held
until an answer begins; a file is passed on as it comes."""


HOLD_SECONDS = 10.0
CONNECTION_BYTES = 64 << 10
"""A stream takes some 50 KiB: its client's connection and the one to its replica."""
CONNECTIONS_SHARE = 0.5  # of the memory; the rest is for bodies, and for what the process itself takes
FILES_PER_CONNECTION = 2
OTHER_FILES = 128
WAKE_SECONDS = 300.0
"""A pod that is made, pulls nothing and reads some GB of weights is there in less."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`body_bytes`: by path, of one request. `held_bytes`: of all that are held. `waiting`: requests of one model, 0
    for half of the connections. `connections`: of clients, 0 for as many as the memory is for.

    `wake_seconds`: how long one may wait for a replica to be there; of those, a stream's head waits for `hold_seconds`.
    """

    body_bytes: Mapping[str, int] = field(default_factory=lambda: BODY_BYTES)
    held_bytes: int = MOST_HELD
    waiting: int = 0
    hold_seconds: float = HOLD_SECONDS
    wake_seconds: float = WAKE_SECONDS
    connections: int = 0

    def resolved(self) -> Limits:
        """With the numbers that this machine gives."""
        connections = self.connections or connections_for(memory_limit(), open_files())
        return replace(self, connections=connections, waiting=self.waiting or max(1, connections // 2))


def connections_for(memory: int, files: int) -> int:
    """How many connections so many bytes of memory, and so many open files, are for."""
    by_files = (files - OTHER_FILES) // FILES_PER_CONNECTION
    return max(1, min(int(memory * CONNECTIONS_SHARE) // CONNECTION_BYTES, by_files))
