"""A RuntimePool on a laptop: one host process with the memory of one pod, and the placements of its models."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.local.manifest.manifest import Document
from plimsoll_runtime.local.model import LocalModel, Stores, plain_environment, read_stores
from plimsoll_runtime.local.text import gib_text
from plimsoll_runtime.residency.spec import ModelName, ModelSpec
from plimsoll_runtime.utils.sizes import Quantity, is_share, parse_size

NEARLY_ALL = 0.95
"""Share of the free memory above which a configured amount is not used, because less may be free when the host starts.
"""
WITHOUT_EFFECT = ("namespaces", "sharedClaims", "rollout")


@dataclass(frozen=True, slots=True)
class LocalPool:
    """A host process to run for one RuntimePool. `arguments` are those of `plimsoll host`; `notes` list differences
    from a cluster.
    """

    namespace: str
    name: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    stores: Stores
    notes: tuple[str, ...]


def read_pools(documents: Sequence[Document], memory_left: int) -> list[LocalPool]:
    """Return the pools of objects with their defaults. `memory_left` is the free memory in bytes."""
    return [_read(document.body, memory_left) for document in documents]


def place(models: Sequence[LocalModel], pools: Sequence[LocalPool]) -> tuple[list[LocalModel], LocalPool | None]:
    """Return the models, and the pool if there is one. Models that name it get `in_host`, its environment and its
    stores. Without a pool they run on their own, with a note.

    Raises UsageError for several pools, or for a model that names a pool other than the given one.
    """
    if len(pools) > 1:
        raise UsageError(
            f"{len(pools)} RuntimePools ({', '.join(pool.name for pool in pools)}), but a laptop runs one at a time; "
            "start a `plimsoll up` with its own --port for each"
        )
    pool = pools[0] if pools else None
    return [_placed(model, pool) for model in models], pool


def _placed(model: LocalModel, pool: LocalPool | None) -> LocalModel:
    wanted = model.spec.get("placement")
    if wanted is None:
        return model
    if pool is None:
        note = f"{model.name}: runs without the RuntimePool {wanted['pool']}, which is not in the files"
        return replace(model, notes=(*model.notes, note))
    key = wanted.get("namespace", model.namespace), wanted["pool"]
    if key != (pool.namespace, pool.name):
        raise UsageError(
            f"{model.origin}: ModelDeployment {model.name} names the RuntimePool {'/'.join(key)}, but the files "
            f"contain {pool.namespace}/{pool.name}; correct spec.placement or add that pool"
        )
    return replace(model, in_host=True, environment=pool.environment, stores=pool.stores)


def _read(body: Mapping[str, Any], memory_left: int) -> LocalPool:
    meta, spec = body["metadata"], body["spec"]
    environment, from_cluster = plain_environment(spec)
    arguments, memory_notes = _arguments(spec, memory_left)
    ignored = [*_ignored(spec), *from_cluster]
    notes = [f"without effect on a laptop: {', '.join(ignored)}"] if ignored else []
    namespace = meta.get("namespace", "default")
    return LocalPool(
        namespace=namespace,
        name=meta["name"],
        arguments=arguments,
        environment=environment,
        stores=read_stores(namespace, spec),
        notes=tuple(f"RuntimePool {meta['name']}: {note}" for note in (*memory_notes, *notes)),
    )


def _arguments(spec: Mapping[str, Any], memory_left: int) -> tuple[tuple[str, ...], list[str]]:
    """Return options of `plimsoll host`, as the operator sets them for a pod with the spec's memory, and notes on
    differences.
    """
    line, sleepers = spec["memory"]["line"], _bytes(spec["memory"]["sleepers"])
    residency = ("--minimum-residency", str(spec["eviction"]["minimumResidencySeconds"]))
    if "accelerator" in spec["resources"]:
        return (*residency, "--device", "cuda", "--line", line, "--sleepers", str(sleepers)), []
    memory = _bytes(spec["resources"]["memory"]) if "memory" in spec["resources"] else None
    notes: list[str] = []
    if memory is None or memory > NEARLY_ALL * memory_left:
        asked = "resources.profile is unknown on a laptop" if memory is None else f"{gib_text(memory)} are not free"
        free = gib_text(memory_left)
        notes.append(f"{asked}: models get {line} of {free} of free memory, minus the memory for sleeping models")
        sleepers = min(sleepers, memory_left // 3)
    else:
        line = str(parse_size(line, memory - sleepers))
    return (*residency, "--device", "cpu", "--line", line, "--sleepers", str(sleepers)), notes


def _bytes(amount: str | int) -> int:
    return int(Quantity.parse(str(amount)).amount)


def _ignored(spec: Mapping[str, Any]) -> list[str]:
    """Return the paths of fields in the object that have no effect on a laptop."""
    replicas = ["spec.replicas (one process)"] if spec["replicas"] > 1 else []
    resources = [f"spec.resources.{field}" for field in spec["resources"] if field not in ("memory", "accelerator")]
    template = [f"spec.template.{field}" for field in spec.get("template") or {} if field != "env"]
    return [*replicas, *resources, *template, *(f"spec.{field}" for field in WITHOUT_EFFECT if field in spec)]


OWN_PROCESS = ("threads", "drainSeconds")
"""Options of a process, which the host sets for all its models."""


def placement(model: LocalModel) -> tuple[ModelName, ModelSpec]:
    """Return name and spec of the model for the host. `spec.runtime.kvMemory` becomes the model's minimum KV cache,
    unless it is a share.
    """
    spec = model.spec
    runtime = {key: value for key, value in spec.get("runtime", {}).items() if key not in OWN_PROCESS}
    least = runtime.pop("kvMemory", None)
    worth = {key: value for key, value in spec.get("placement", {}).items() if key in ("weight", "priority", "pinned")}
    made = ModelSpec(
        revision="",
        source=spec["model"]["source"],
        model_revision=spec["model"].get("revision"),
        served_names=model.served_names,
        runtime=runtime,
        minimum_kv=None if least is None or is_share(least) else least,
        **worth,
    )
    digest = hashlib.sha256(msgspec.json.encode(made, order="deterministic")).hexdigest()
    return ModelName(model.namespace, model.name), msgspec.structs.replace(made, revision=digest[:16])
