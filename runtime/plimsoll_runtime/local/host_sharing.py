"""Which models share one host process, asleep and awake, and which have processes of their own."""

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
"""What server and engine of one small model take beside its weights: 356 MiB of memory of their own, measured with a
Llama of 0.3 MB on Linux 6.1 with torch 2.9 (Private_Dirty in /proc/PID/smaps_rollup after an answer)."""
GGUF_BYTES = 2
"""A weight's, once it is loaded: GGUF files are computed in bfloat16 on most processors."""


@dataclass(frozen=True, slots=True)
class SharingDecision:
    """Whether models share a process, and a line that says why, where somebody did not ask for it."""

    together: bool
    why: str = ""


def choose(
    models: Sequence[LocalModel], asked: bool | None, memory: Callable[[], int] | None = None
) -> SharingDecision:
    """What was asked for; else together where more than one model runs and they need more than `memory` gives.

    Models whose files are not on this machine yet count with their processes only. One that brings code shares with
    nobody.
    """
    running = [model for model in models if model.replicas]
    if asked is not None or len(running) < 2 or any(model.brings_code for model in running):
        return SharingDecision(bool(asked))
    needed, free = sum(map(predicted, running)), (memory or memory_left)()
    if needed <= free:
        return SharingDecision(False)
    return SharingDecision(
        True,
        f"{len(running)} models would take {gib_text(needed)}, and {gib_text(free)} are free: they share one process, "
        "in which those in use are in memory and the rest sleep (--apart: a process each)",
    )


def share(models: Sequence[LocalModel]) -> tuple[LocalModel, ...]:
    """The models as parts of one host. Raises UsageError where their environments or stores contradict each other, or
    one brings code, which is not run beside other models.
    """
    if names := [model.name for model in models if model.brings_code]:
        raise UsageError(
            f"{', '.join(names)}: code that comes with a model (spec.model.trustRemoteCode) is not run in a process "
            "that models share: run them with --apart"
        )
    shared_environment(models)
    shared_stores(models)
    return tuple(
        replace(model, in_host=True, notes=(*model.notes, *_without_effect(model)) if model.replicas else model.notes)
        for model in models
    )


def shared_environment(models: Sequence[LocalModel]) -> dict[str, str]:
    """The variables of all of them. Raises UsageError where one has two values."""
    found: dict[str, tuple[str, LocalModel]] = {}
    for model in models:
        for name, value in model.environment:
            known, other = found.setdefault(name, (value, model))
            if known != value:
                raise UsageError(
                    f"{other.name} and {model.name} share a process, but not {name} in spec.template.env: give it the "
                    "same value in both, or run them with --apart"
                )
    return {name: value for name, (value, _) in found.items()}


def shared_stores(models: Sequence[LocalModel]) -> Stores:
    """What a process keeps that these models share. Raises UsageError where they say different things of it."""
    found: tuple[Stores, LocalModel] | None = None
    for model in models:
        if model.stores == Stores():
            continue
        if found is not None and found[0] != model.stores:
            raise UsageError(
                f"{found[1].name} and {model.name} share a process, but not what it keeps: give both the same "
                "spec.responses and spec.files, or leave them out of one, or run them with --apart"
            )
        found = model.stores, model
    return Stores() if found is None else found[0]


def predicted(model: LocalModel) -> int:
    """Bytes that its processes will take: weights as far as they are here, the KV cache that it asks for, the rest."""
    kv = model.spec.get("runtime", {}).get("kvMemory", "")
    asked = 0 if not kv or is_share(kv) else parse_size(kv, 0)
    return model.replicas * (_weights(model) + asked + PROCESSES)


def memory_left() -> int:
    """Bytes that this machine, or the container that this is, has left."""
    available = int(psutil.virtual_memory().available)
    limit = cgroup_left()
    return available if limit is None else min(available, limit)


def _weights(model: LocalModel) -> int:
    """Bytes of the weights once they are loaded; 0 where only a download would tell, or starting says what is wrong."""
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
    told = f"{model.name}: without effect in a process that models share: {', '.join(fields)}"
    return (told,) if fields else ()
