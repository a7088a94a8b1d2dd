"""The fields that the specs of models and pools share, from which plans, views, budgets and pods are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.spec.identity import Object, ObjectKey, Owner
from plimsoll_operator.spec.parallel import Parallel
from plimsoll_operator.spec.persistence import Files, Responses, read_files, read_responses, rollout_of
from plimsoll_operator.spec.rollout import Rollout
from plimsoll_operator.spec.template import (
    STARTUP_SECONDS,
    Accelerator,
    Template,
    read_resources,
    read_template,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(ABC):
    """A number of equal pods with their rollout.

    `generation` is that of the spec. `cpu` is a request; memory, ephemeral storage and accelerators are requests and
    limits. `profile` names the profile from which the spec takes fields that it does not set. `own`: the spec before
    profiles and defaults of the installation were added to it; None if they added nothing.
    """

    owner: Owner
    generation: int
    replicas: int
    cpu: str | None
    memory: str | None
    accelerator: Accelerator | None
    cpu_limit: str | None
    ephemeral_storage: str | None
    template: Template
    rollout: Rollout
    responses: Responses | None = None
    files: Files | None = None
    parallel: Parallel | None = None
    profile: str | None = None
    own: Workload | None = None

    @property
    def key(self) -> ObjectKey:
        """Namespace and name of the owner."""
        return self.owner.key

    @property
    @abstractmethod
    def drain_seconds(self) -> int:
        """Seconds for running requests to end when a pod stops."""

    @property
    def pods_per_replica(self) -> int:
        """The number of pods of one replica, its group."""
        return 1 if self.parallel is None else self.parallel.pods

    @property
    def startup_seconds(self) -> int:
        """Seconds for a pod to start before the kubelet restarts it."""
        return self.template.startup_seconds or STARTUP_SECONDS


def read_workload(item: Object) -> dict[str, Any]:
    """Read the keyword arguments of a `Workload`, except `owner` and `replicas`, from an accepted object."""
    spec = item["spec"]
    resources, responses = spec.get("resources", {}), read_responses(spec.get("responses"))
    return {
        "generation": item["metadata"]["generation"],
        **read_resources(resources),
        "template": read_template(spec.get("template", {})),
        "rollout": rollout_of(spec.get("rollout", {}), responses),
        "responses": responses,
        "files": read_files(spec.get("files")),
        "profile": resources.get("profile"),
    }
