"""The fields of a spec from which plans, views, budgets and pods are made, for any kind of object."""

from __future__ import annotations

from typing import Protocol

from plimsoll_operator.spec.identity import ObjectKey, Owner
from plimsoll_operator.spec.rollout import Rollout
from plimsoll_operator.spec.template import Accelerator, Template


class Workload(Protocol):
    """A number of equal pods with their rollout. Implementations are frozen dataclasses."""

    @property
    def owner(self) -> Owner:
        """The object that the pods belong to."""

    @property
    def key(self) -> ObjectKey:
        """Namespace and name of the owner."""

    @property
    def generation(self) -> int:
        """The generation of the spec."""

    @property
    def replicas(self) -> int:
        """The number of wanted pods."""

    @property
    def cpu(self) -> str | None:
        """The CPU request of each pod."""

    @property
    def cpu_limit(self) -> str | None:
        """The CPU limit of each pod."""

    @property
    def memory(self) -> str | None:
        """The memory request and limit of each pod."""

    @property
    def ephemeral_storage(self) -> str | None:
        """The request and limit of each pod on its node's disk."""

    @property
    def accelerator(self) -> Accelerator | None:
        """The accelerators of each pod."""

    @property
    def profile(self) -> str | None:
        """The profile from which the spec takes fields that it does not set."""

    @property
    def own(self) -> Workload | None:
        """The object's own fields, if profiles or defaults of the installation added to them."""

    @property
    def template(self) -> Template:
        """Additions to each pod."""

    @property
    def rollout(self) -> Rollout:
        """How pods may be replaced."""

    @property
    def drain_seconds(self) -> int:
        """Seconds for running requests to end when a pod stops."""

    @property
    def startup_seconds(self) -> int:
        """Seconds for a pod to start before the kubelet restarts it."""
