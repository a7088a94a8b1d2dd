"""Whose blocks a folder can hold: what a block's bytes depend on besides its tokens and tenant."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from plimsoll_kernels.cpu.compile import library_path
from plimsoll_kernels.cpu.library import kernels
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.version import VERSION
from plimsoll_runtime.weights.files import ModelFiles, opened

HEAD_BYTES = 1 << 16


def fingerprint(files: ModelFiles, cache: KvCache, backend: str, *, fused: bool) -> bytes:
    """32 bytes that change with the weights, their precision, the layout of a block, and the code that computes it.

    Weights count by size, time of change and first bytes of their files: reading them whole takes as long as loading
    them. Our CPU kernels keep an order of their own within a block, so their sources count too, and their instructions,
    which round differently.
    """
    ours = kernels(cache.dtype) if fused else None
    facts = {
        "version": VERSION,
        "config": dict(files.config),
        "weights": [_file(path) for path in files.weights],
        "dtype": str(cache.dtype),
        "block_size": cache.block_size,
        "shapes": [(shape.kv_heads, shape.head_dim, shape.cached_width) for shape in cache.shapes],
        "groups": cache.groups,
        "backend": backend,
        "kernels": None if ours is None else [library_path().name, ours.name.decode()],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).digest()


def _file(path: Path) -> tuple[str, int, int, str]:
    status = path.stat()
    with opened(path) as file:
        head = hashlib.sha256(file.read(HEAD_BYTES)).hexdigest()
    return path.name, status.st_size, status.st_mtime_ns, head
