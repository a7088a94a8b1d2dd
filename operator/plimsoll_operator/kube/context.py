"""What a reconcile of any kind of object works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from plimsoll_operator.build.disruption_budget import Budgets
from plimsoll_operator.build.image import Image
from plimsoll_operator.kube.api import Api
from plimsoll_operator.kube.clock import utc_now
from plimsoll_operator.kube.expectations import Expectations
from plimsoll_operator.kube.served_names import NameRegistry
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.planning.nodes import NodeRegistry
from plimsoll_operator.spec.model_deployment import Spec, SpecError
from plimsoll_operator.spec.profiles import NO_PROFILES, Profiles


@dataclass(frozen=True, slots=True)
class ReconcileContext:
    """One process has one of it.

    `instance` is its name in events. `may_act` is asked before every change. `budgets`: for which objects disruption
    budgets are made. `remote_code`: whether models may bring code of their own.
    """

    api: Api
    stores: Stores
    expectations: Expectations
    image: Image
    names: NameRegistry
    nodes: NodeRegistry
    instance: str
    may_act: Callable[[], bool]
    budgets: Budgets = field(default_factory=Budgets)
    clock: Callable[[], datetime] = utc_now
    remote_code: bool = False
    profiles: Profiles = NO_PROFILES

    def check(self, spec: Spec) -> None:
        """Raises SpecError for what this installation lets no model have in pods of its own."""
        self.image.of(spec)
        if spec.trust_remote_code and spec.placement is None and not self.remote_code:
            raise SpecError(
                "model.trustRemoteCode asks for code that comes with the model to run, and this installation lets no "
                "model do that: leave it out, or have the chart's runtime.trustRemoteCode set"
            )
