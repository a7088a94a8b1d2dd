"""What the operator keeps pods for, whatever its kind: what plans, views, budgets and revisions ask of a spec."""

from __future__ import annotations

from typing import Protocol

from plimsoll_operator.spec.identity import ObjectKey, Owner
from plimsoll_operator.spec.rollout import Rollout
from plimsoll_operator.spec.template import Accelerator, Template


class Workload(Protocol):
    """A number of equal pods, and how they may be replaced. Implementations are frozen dataclasses."""

    @property
    def owner(self) -> Owner:
        """The object that the pods belong to."""

    @property
    def key(self) -> ObjectKey:
        """Its namespace and name."""

    @property
    def generation(self) -> int:
        """Of its spec."""

    @property
    def replicas(self) -> int:
        """How many pods are wanted."""

    @property
    def cpu(self) -> str | None:
        """CPU that each requests."""

    @property
    def cpu_limit(self) -> str | None:
        """CPU that each is not to pass."""

    @property
    def memory(self) -> str | None:
        """Memory that each requests and is not to pass."""

    @property
    def ephemeral_storage(self) -> str | None:
        """Disk of the node, the same."""

    @property
    def accelerator(self) -> Accelerator | None:
        """Its accelerators."""

    @property
    def profile(self) -> str | None:
        """The profile that it takes fields from which it does not set."""

    @property
    def own(self) -> Workload | None:
        """The object's own fields, where profiles and defaults of the installation have added to them."""

    @property
    def template(self) -> Template:
        """Additions to each pod."""

    @property
    def rollout(self) -> Rollout:
        """How they may be replaced."""

    @property
    def drain_seconds(self) -> int:
        """How long running requests may go on when a pod stops."""

    @property
    def startup_seconds(self) -> int:
        """How long a pod may start before its kubelet starts it again."""
