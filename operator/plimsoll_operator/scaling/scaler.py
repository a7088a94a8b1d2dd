"""Every model that scales: what gateways say of it, and what its rule makes of that.

Passes ask `decide`; the status that they write is what the next process goes
on from. Between passes the loop looks at those that could want another number, and has them get a pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from plimsoll_operator.kube.clock import utc_now
from plimsoll_operator.planning.pods import Pod
from plimsoll_operator.scaling.demand import Demand, ModelDemand
from plimsoll_operator.scaling.demand_window import DemandWindow
from plimsoll_operator.scaling.facts import Facts
from plimsoll_operator.scaling.gateways import GatewayRegistry
from plimsoll_operator.scaling.history import ScalingHistory, ScalingStatus, measured, read_scaling_status, remembered
from plimsoll_operator.scaling.rule import DesiredReplicas, decide, needed
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.spec.scaling import Scaling
from plimsoll_operator.status.load_progress import LoadFailure, Loading, failure_of_status, loads_until, served_since

WEIGHT = 0.5
"""Of the last start in what is expected of the next."""


class Starts:
    """Of one model."""

    def __init__(self) -> None:
        self._starting: set[str] = set()

    def see(self, pods: Iterable[Pod], expected: float | None) -> float | None:
        """The seconds that are expected now. Pods of which nobody saw that they were not ready tell nothing."""
        live = [pod for pod in pods if pod.live]
        for pod in live:
            if pod.ready and pod.uid in self._starting:
                took = max(0.0, (pod.moved - pod.created).total_seconds())
                expected = took if expected is None else WEIGHT * took + (1 - WEIGHT) * expected
        self._starting = {pod.uid for pod in live if not pod.ready and (not pod.cut_off)}
        return expected


LOOK_SECONDS = 5.0
"""Between two looks at every model that is asked for, or has more replicas than it must."""


TOLD_SECONDS = 60.0
"""Between two words about a model's trouble: figures in them change with each look."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is wanted, and the status that is to say so."""

    desired_replicas: DesiredReplicas
    before: int | None
    scaling_status: ScalingStatus

    @property
    def replicas(self) -> int:
        """How many are wanted."""
        return self.desired_replicas.replicas

    @property
    def changes(self) -> bool:
        """Whether another number is wanted than the status says."""
        return self.before != self.desired_replicas.replicas


@dataclass(slots=True)
class Model:
    """One that scales. `scaling`, `scaling_status`, `ready` and `loading` are those of its last pass."""

    history: ScalingHistory
    window: DemandWindow
    starts: Starts
    scaling: Scaling
    scaling_status: ScalingStatus
    ready: int = 0
    loading: Loading = field(default_factory=Loading)


class Scaler:
    """`wake` is told of models that want another number of replicas."""

    def __init__(
        self,
        registry: GatewayRegistry | None = None,
        *,
        wake: Callable[[ObjectKey], None] = lambda key: None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.registry = registry or GatewayRegistry()
        self.registry.listen(self._answered)
        self._wake = wake
        self._clock = clock
        self._models: dict[ObjectKey, Model] = {}
        self._said: dict[str, dict[ObjectKey, ModelDemand]] = {}

    def decide(
        self,
        key: ObjectKey,
        scaling: Scaling,
        status: Mapping[str, Any],
        pods: Iterable[Pod],
        *,
        revision: str,
        startup: float,
    ) -> Decision:
        """What is wanted of a model with this status and these pods. It is followed from now on.

        `revision` is the one that is to serve, and `startup` the seconds that a replica may take to load it.
        """
        found = [pod for pod in pods if pod.live]
        now, scaling_status = self._clock().timestamp(), _standing_before(status, len(found))
        served = served_since(found, revision) if scaling_status.desired else None
        if served is not None or status.get("stableRevision") == revision:
            scaling_status = replace(scaling_status, loaded=revision)
        model = self._model(key, scaling, scaling_status, now)
        model.history.serve(revision if scaling_status.desired else "", served, now)
        model.loading = Loading(
            loaded=scaling_status.loaded == revision,
            failed=scaling_status.gave_up is not None and scaling_status.gave_up.revision == revision,
            until=loads_until(found, scaling_status.since, startup),
            served=model.history.served or 0.0,
        )
        decision = self._decide(key, model, sum(pod.ready for pod in found), found, now)
        gave_up = None if decision.replicas or model.loading.loaded else scaling_status.gave_up
        if not (decision.replicas or model.loading.loaded or model.loading.failed):
            gave_up = LoadFailure(revision, failure_of_status(status.get("conditions") or (), startup))
        return replace(decision, scaling_status=replace(decision.scaling_status, gave_up=gave_up))

    def decide_placed(
        self, key: ObjectKey, scaling: Scaling, status: Mapping[str, Any], there: int, awake: int
    ) -> Decision:
        """The same of a model in a pool that is on so many hosts."""
        now = self._clock().timestamp()
        model = self._model(key, scaling, _standing_before(status, there), now)
        return self._decide(key, model, awake, (), now)

    def _model(self, key: ObjectKey, scaling: Scaling, scaling_status: ScalingStatus, now: float) -> Model:
        """A model, as its spec and its status are now."""
        model = self._models.get(key)
        if model is None:
            model = Model(remembered(scaling_status, now), DemandWindow(), Starts(), scaling, scaling_status)
            self._models[key] = model
        model.scaling, model.scaling_status = scaling, scaling_status
        return model

    def _decide(self, key: ObjectKey, model: Model, ready: int, pods: Sequence[Pod], now: float) -> Decision:
        model.ready = ready
        model.history.start = model.starts.see(pods, model.history.start)
        desired_replicas = self._desired_replicas(key, model, now)
        return Decision(
            desired_replicas,
            model.scaling_status.desired,
            _scaling_status(model.scaling_status, desired_replicas, model.history, now),
        )

    def forget(self, key: ObjectKey) -> None:
        """A model is gone, or scales no more."""
        self._models.pop(key, None)

    async def run(self) -> None:
        """Look at models for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Have those get a pass that want another number, or of which something else is to be told."""
        now = self._clock().timestamp()
        self.registry.watched_since(now)
        for key, model in self._models.items():
            if self._is_quiet(key, model):
                continue
            desired_replicas = self._desired_replicas(key, model, now)
            trouble = (
                desired_replicas.trouble != model.scaling_status.trouble and now - model.history.told >= TOLD_SECONDS
            )
            if desired_replicas.replicas != model.scaling_status.desired or trouble:
                self._wake(key)

    def demand(self, key: ObjectKey) -> list[ModelDemand]:
        """What the gateways that count say of a model."""
        now = self._clock().timestamp()
        known = (self._said.get(answer.instance, {}).get(key) for answer in self.registry.believed(now))
        return [entry for entry in known if entry is not None]

    def check_integrity(self) -> None:
        """Raise AssertionError where what is remembered contradicts itself."""
        self.registry.check_integrity()
        for model in self._models.values():
            model.history.check_integrity()
            model.window.check_integrity()

    def _answered(self, address: str, before: Demand | None, answer: Demand) -> None:
        now = self._clock().timestamp()
        then = self._said.get(before.instance, {}) if before is not None else {}
        named = {entry.key for entry in before.models} if before is not None else frozenset()
        said = {entry.key: entry for entry in answer.models if entry.key in self._models}
        for key, entry in said.items():
            known = then.get(key)
            if known is None and before is not None and key not in named:
                known = ModelDemand(entry.namespace, entry.name)
            model = self._models[key]
            model.window.count(known, entry, answer, now)
            if entry.held and not model.scaling_status.desired:
                self._wake(key)
        self._said[answer.instance] = said
        kept = {gateway.answer.instance for gateway in self.registry if gateway.answer is not None}
        for instance in self._said.keys() - kept:
            del self._said[instance]

    def _desired_replicas(self, key: ObjectKey, model: Model, now: float) -> DesiredReplicas:
        facts = self._facts(key, model, now)
        history, scaling, desired = model.history, model.scaling, model.scaling_status.desired
        history.load_line = history.load_line.learned(scaling.target, facts)
        if desired:
            history.recommended.say(now, needed(scaling, desired, facts, history.load_line).replicas)
            history.recommended.forget(now - max(scaling.up, scaling.down))
        return decide(scaling, desired, facts, history.load_line, history.recommended, history.began)

    def _facts(self, key: ObjectKey, model: Model, now: float) -> Facts:
        reading = model.window.read(self.demand(key), now)
        since, unheard = self.registry.watched_since(now), self.registry.unheard(now)
        facts = model.window.facts(reading, model.ready, model.history.ahead, now, since, unheard)
        steady = facts.steady and (model.scaling_status.desired or 0) <= model.ready
        return replace(facts, steady=steady, loading=model.loading)

    def _is_quiet(self, key: ObjectKey, model: Model) -> bool:
        """Whether nothing can have changed: nobody asks, and no more replicas are there than must be."""
        return model.scaling_status.desired == model.scaling.floor and not any(e.in_flight for e in self.demand(key))


def _standing_before(status: Mapping[str, Any], there: int) -> ScalingStatus:
    """What the last status says of a model that is there so often."""
    scaling_status = read_scaling_status(status)
    if scaling_status.desired is None and there:  # it had replicas before it was to scale
        return replace(scaling_status, desired=there)
    return scaling_status


def _scaling_status(
    before: ScalingStatus, desired_replicas: DesiredReplicas, history: ScalingHistory, now: float
) -> ScalingStatus:
    """What the status is to say: words change with the number, figures when they are far off, trouble now and then."""
    anew = before.desired != desired_replicas.replicas
    told = replace(
        measured(before, history.start, history.load_line.missed, anew=anew), desired=desired_replicas.replicas
    )
    if desired_replicas.trouble != before.trouble and (anew or now - history.told >= TOLD_SECONDS):
        history.told = now
        told = replace(told, trouble=desired_replicas.trouble)
    return replace(told, since=now, why=desired_replicas.words) if anew else told
