"""Chooses which models share one host process, and which run in processes of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import psutil

from plimsoll_runtime.errors import PlimsollError, UsageError
from plimsoll_runtime.execution.memory.system import cgroup_left
from plimsoll_runtime.local.model import LocalModel, Stores
from plimsoll_runtime.local.text import gib_text
from plimsoll_runtime.utils.sizes import is_share, parse_size
from plimsoll_runtime.weights.gguf.metadata import read_metadata
from plimsoll_runtime.weights.sources.demo import unseen_terms
from plimsoll_runtime.weights.sources.resolve import resolve

PROCESSES = 360 * 2**20
"""Memory that server and engine of one small model take in addition to its weights: 356 MiB of private memory, measured
with a Llama of 0.3 MB on Linux 6.1 with torch 2.9 (Private_Dirty in /proc/PID/smaps_rollup after a request).
"""
GGUF_BYTES = 2
"""Bytes of a weight after loading: GGUF models compute in bfloat16 on most processors."""


@dataclass(frozen=True, slots=True)
class SharingDecision:
    """Whether models share a process. `why` tells the user why they do; it is empty unless this was decided
    automatically.
    """

    together: bool
    why: str = ""


def choose(
    models: Sequence[LocalModel], asked: bool | None, memory: Callable[[], int] | None = None
) -> SharingDecision:
    """Decide whether models share a process: as `asked` says or, if it is None, if at least two models have replicas
    and together need more bytes than `memory` returns (by default the free memory).

    Models whose files are not on this machine yet count without their weights. If one brings code or is divided among
    ranks, models share only if `asked`.
    """
    running = [model for model in models if model.replicas]
    alone = any(model.brings_code or model.is_divided for model in running)
    if asked is not None or len(running) < 2 or alone:
        return SharingDecision(bool(asked))
    needed, free = sum(map(predicted, running)), (memory or memory_left)()
    if needed <= free:
        return SharingDecision(False)
    return SharingDecision(
        True,
        f"{len(running)} models need {gib_text(needed)}, but {gib_text(free)} are free: they share one process that "
        "keeps used models in memory and lets the others sleep (for a process each: --apart)",
    )


def share(models: Sequence[LocalModel]) -> tuple[LocalModel, ...]:
    """Return the models with `in_host` set, and with notes on fields that have no effect in a shared process.

    Raises UsageError if their environments or stores contradict each other, or if one brings code or is divided among
    ranks, which never run in a shared process.
    """
    if names := [model.name for model in models if model.brings_code]:
        raise UsageError(
            f"{', '.join(names)}: a model with code of its own (spec.model.trustRemoteCode) cannot share a process "
            "with other models; run them with --apart"
        )
    if names := [model.name for model in models if model.is_divided]:
        raise UsageError(
            f"{', '.join(names)}: a model that is divided among ranks (spec.parallel) cannot share a process with "
            "other models; run them with --apart"
        )
    shared_environment(models)
    shared_stores(models)
    return tuple(
        replace(model, in_host=True, notes=(*model.notes, *_without_effect(model)) if model.replicas else model.notes)
        for model in models
    )


def shared_environment(models: Sequence[LocalModel]) -> dict[str, str]:
    """Return the environment variables of all models. Raises UsageError if a variable has two values."""
    found: dict[str, tuple[str, LocalModel]] = {}
    for model in models:
        for name, value in model.environment:
            known, other = found.setdefault(name, (value, model))
            if known != value:
                raise UsageError(
                    f"{other.name} and {model.name} share a process, but have different values of {name} in "
                    "spec.template.env; set the same value in both, or run them with --apart"
                )
    return {name: value for name, (value, _) in found.items()}


def shared_stores(models: Sequence[LocalModel]) -> Stores:
    """Return the stores that the models share. Raises UsageError if they specify different stores."""
    found: tuple[Stores, LocalModel] | None = None
    for model in models:
        if model.stores == Stores():
            continue
        if found is not None and found[0] != model.stores:
            raise UsageError(
                f"{found[1].name} and {model.name} share a process, but have different spec.responses or spec.files; "
                "make them equal, leave them out of one model, or run them with --apart"
            )
        found = model.stores, model
    return Stores() if found is None else found[0]


def predicted(model: LocalModel) -> int:
    """Return the bytes that the model's processes will take: weights (if their files are here), the configured KV cache
    (0 for a share of memory), and the processes' own memory, for each replica.
    """
    kv = model.spec.get("runtime", {}).get("kvMemory", "")
    asked = 0 if not kv or is_share(kv) else parse_size(kv, 0)
    return model.replicas * (_weights(model) + asked + PROCESSES)


def memory_left() -> int:
    """Return the bytes of memory that this machine or this container has free."""
    available = int(psutil.virtual_memory().available)
    limit = cgroup_left()
    return available if limit is None else min(available, limit)


def _weights(model: LocalModel) -> int:
    """Return the bytes of the loaded weights; 0 if they must be downloaded first, or if their files are broken (the
    start then reports the error).
    """
    if not model.source.startswith(("file://", "demo://")) or unseen_terms(model.source) is not None:
        return 0
    try:
        files = resolve(model.source)
        if files.format == "gguf":
            tensors: Mapping[str, tuple[int, ...]] = {
                name: tensor.shape for path in files.weights for name, tensor in read_metadata(path).tensors.items()
            }
            return GGUF_BYTES * sum(math.prod(shape) for shape in tensors.values())
        return sum(path.stat().st_size for path in files.weights)
    except (PlimsollError, OSError):
        return 0


def _without_effect(model: LocalModel) -> tuple[str, ...]:
    runtime = model.spec.get("runtime", {})
    fields = [f"spec.runtime.{field}" for field in ("threads", "drainSeconds") if field in runtime]
    fields += ["spec.replicas"] if model.replicas > 1 else []
    told = f"{model.name}: without effect in a shared process: {', '.join(fields)}"
    return (told,) if fields else ()
