"""What all members of a parallel group must agree on, as texts by name."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from pathlib import Path

from plimsoll_kernels.cpu.compile import library_path
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.parallel.membership import Identity
from plimsoll_runtime.version import VERSION
from plimsoll_runtime.weights.files import ModelFiles

OF_EACH = frozenset({"model", "group", "threads", "tensor_parallel", "pipeline_parallel"})
"""Options that members may set differently, or that are facts of their own."""
OF_LEADER = frozenset({"policy", "overlap", "offline", "step_timeout", "recover_seconds", "check_integrity_every"})
"""Options that only the leader reads."""
DIGITS = 16


def identity_of(config: EngineConfig, files: ModelFiles) -> Identity:
    """Return a member's identity. The model's files may be in different folders, with different times."""
    group = config.group
    facts = {
        "model": files.name,
        "tensor_parallel": str(config.tensor_parallel),
        "pipeline_parallel": str(config.pipeline_parallel),
        "group_size": str(group.size),
        "version": VERSION,
        "kernels": library_path().name,
        "weight files": _weights(files.weights),
        "config.json": _digest(json.dumps(files.config, sort_keys=True, default=str)),
    }
    for field in fields(EngineConfig):
        if field.name not in OF_EACH | OF_LEADER:
            facts[field.name] = str(getattr(config, field.name))
    return Identity(group.index, group.size, facts, group.token)


def _weights(paths: tuple[Path, ...]) -> str:
    """Return the number of files, their bytes and a digest of their names and sizes."""
    sizes = [(path.name, path.stat().st_size) for path in paths]
    total = sum(size for _, size in sizes)
    return f"{len(sizes)} files of {total} bytes ({_digest(json.dumps(sizes))})"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
