"""What all members of a parallel group must agree on, as texts by name."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from pathlib import Path

import torch

from plimsoll_kernels.cpu.compile import library_path
from plimsoll_kernels.cpu.library import kernels, runnable
from plimsoll_runtime.driver.build.group_devices import backend_of
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.execution.device.select import check_instructions, choose, choose_dtype
from plimsoll_runtime.parallel.instruction_sets import Sets
from plimsoll_runtime.parallel.membership import Identity
from plimsoll_runtime.version import VERSION
from plimsoll_runtime.weights.files import ModelFiles

OF_EACH = frozenset({"model", "group", "threads", "tensor_parallel", "pipeline_parallel"})
"""Options that members may set differently, or that are facts of their own."""
OF_LEADER = frozenset(
    {"policy", "overlap", "offline", "step_timeout", "recover_seconds", "check_integrity_every", "step_tracing"}
)
"""Options that only the leader reads."""
DIGITS = 16


def identity_of(config: EngineConfig, files: ModelFiles) -> Identity:
    """Return a member's identity. The model's files may be in different folders, with different times.

    It takes tens of milliseconds if CPU kernels compute (see `kernels`). Raises UsageError if PLIMSOLL_CPU_ISA cannot
    be used.
    """
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
    return Identity(group.index, group.size, facts, group.token, _instructions(config, files))


def _instructions(config: EngineConfig, files: ModelFiles) -> Sets:
    """Return the instruction sets up to the one that a rank would choose here, by PLIMSOLL_CPU_ISA or by speed."""
    if config.device == "cuda" or choose(config.device).type != "cpu":
        return ()
    device = torch.device("cpu")
    is_divided_by_torch = config.tensor_parallel > 1 and backend_of(config, device) != "local"
    if is_divided_by_torch or config.attention_backend not in ("auto", "cpu"):
        return ()
    check_instructions()
    dtype = choose_dtype(config.dtype, files.config, device, quantised=files.format == "gguf", ours=True)
    found = kernels(dtype)
    if found is None:
        return ()
    able = runnable()
    return able[: able.index(found.name.decode()) + 1]


def _weights(paths: tuple[Path, ...]) -> str:
    """Return the number of files, their bytes and a digest of their names and sizes."""
    sizes = [(path.name, path.stat().st_size) for path in paths]
    total = sum(size for _, size in sizes)
    return f"{len(sizes)} files of {total} bytes ({_digest(json.dumps(sizes))})"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
