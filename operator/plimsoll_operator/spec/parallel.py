"""`spec.parallel`: the ranks and pods of a replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.spec.quantity import byte_count
from plimsoll_operator.spec.secret_item import SecretItem, read_secret_item
from plimsoll_operator.spec.template import Accelerator, SpecError

SHM_OF_RANK = 64 * 2**20
"""Bytes of /dev/shm for each rank of a pod, unless `template.shmSize` is set."""


@dataclass(frozen=True, slots=True)
class Parallel:
    """How the ranks of a replica divide the model, and the number of pods that the ranks run in.

    `topology_key`: the label of nodes whose value is the same for all pods of a group. `recover_seconds`: how long
    requests wait for lost ranks; None for the runtime's default. `token`: the secret that the pods of a group share.
    """

    tensor: int = 1
    pipeline: int = 1
    pods: int = 1
    topology_key: str | None = None
    recover_seconds: int | None = None
    token: SecretItem | None = None

    @property
    def ranks(self) -> int:
        """The number of ranks of a replica."""
        return self.tensor * self.pipeline

    @property
    def ranks_per_pod(self) -> int:
        """The number of ranks of each pod."""
        return self.ranks // self.pods

    def __str__(self) -> str:
        """Return it in a few characters, for tables."""
        sizes = [f"{word}{count}" for word, count in (("tp", self.tensor), ("pp", self.pipeline)) if count > 1]
        return f"{' x '.join(sizes)}, {self.pods} pod{'' if self.pods == 1 else 's'}"


def read_parallel(values: Mapping[str, Any] | None, namespace: str) -> Parallel | None:
    """Read `spec.parallel` of an object that the API server accepted; None if each replica has one rank.

    Raise SpecError if the pods cannot have equal numbers of ranks, which the API server checks only since there are
    groups.
    """
    found = values or {}
    parallel = Parallel(
        tensor=found.get("tensor", 1),
        pipeline=found.get("pipeline", 1),
        pods=found.get("pods", 1),
        topology_key=found.get("topologyKey"),
        recover_seconds=found.get("recoverSeconds"),
        token=read_secret_item(found.get("tokenSecret"), namespace),
    )
    if parallel.ranks % parallel.pods:
        raise SpecError(
            f"parallel.tensor {parallel.tensor} x parallel.pipeline {parallel.pipeline} are {parallel.ranks} ranks, "
            f"which {parallel.pods} pods cannot share evenly: choose parallel.pods so that it divides {parallel.ranks}"
        )
    return parallel if parallel.ranks > 1 else None


def check_accelerator(parallel: Parallel | None, accelerator: Accelerator | None) -> None:
    """Raise SpecError unless each rank of a pod has one accelerator. The accelerator may come from a profile, so that
    the API server cannot check this.
    """
    ranks = 1 if parallel is None else parallel.ranks_per_pod
    if accelerator is not None and accelerator.count != ranks:
        raise SpecError(
            f"resources.accelerator.count is {accelerator.count}, but each pod has {ranks} rank"
            f"{'' if ranks == 1 else 's'}, which need one accelerator each: change the count, or parallel.tensor, "
            "parallel.pipeline and parallel.pods"
        )


def check_shm(parallel: Parallel | None, shm: str | None, memory: str | None, kv_memory: str | None) -> None:
    """Raise SpecError if /dev/shm of pods with `parallel`, which is memory of the pod, leaves nothing of
    `resources.memory` for the weights. An amount of `runtime.kvMemory` is of all ranks together.
    """
    size = shm_bytes(parallel, shm)
    if parallel is None or size is None or memory is None:
        return
    kv = 0 if kv_memory is None or kv_memory.endswith("%") else byte_count(kv_memory) // parallel.pods
    if size + kv >= byte_count(memory):
        beside = f" and runtime.kvMemory {kv_memory}" if kv else ""
        raise SpecError(
            f"/dev/shm of {size // 2**20}Mi{beside} leave nothing of resources.memory {memory} for the weights: raise "
            "memory, or lower template.shmSize"
        )


def shm_bytes(parallel: Parallel | None, shm: str | None) -> int | None:
    """Return the size of /dev/shm in a pod; None if it is the container runtime's."""
    if shm is not None:
        return byte_count(shm)
    return None if parallel is None or parallel.ranks_per_pod == 1 else parallel.ranks_per_pod * SHM_OF_RANK
