"""The context that reconciles of all kinds share."""

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
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.spec.profiles import NO_PROFILES, Profiles
from plimsoll_operator.spec.template import SpecError
from plimsoll_telemetry.tracer import Tracer


@dataclass(frozen=True, slots=True)
class ReconcileContext:
    """Shared objects and settings of a process.

    `instance` is its name in events. `may_act`: whether this process is the leader; called before every write.
    `budgets`: which objects get disruption budgets. `remote_code`: whether models may run code from their repositories.
    `tracer`: None if traces are off.
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
    tracer: Tracer | None = None

    def check(self, spec: Spec) -> None:
        """Raise SpecError if this installation does not allow the spec's image, or code from the model's repository in
        dedicated pods.
        """
        self.image.of(spec)
        if spec.trust_remote_code and spec.placement is None and not self.remote_code:
            raise SpecError(
                "model.trustRemoteCode runs code from the model's repository, which this installation does not allow: "
                "leave it out, or set the chart's runtime.trustRemoteCode"
            )
