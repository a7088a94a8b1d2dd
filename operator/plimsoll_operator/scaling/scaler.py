"""Scales all models with `spec.scaling`: collects their demand and applies the rule.

A reconcile calls `decide`; the status that it writes is what the next leader continues from. Between reconciles, a loop
finds models that need another number of replicas and queues them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from plimsoll_operator.kube.clock import utc_now
from plimsoll_operator.planning.units import Unit
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
"""The weight of the last measured start time in the expected one."""


class Starts:
    """Measures the start times of one model's replicas."""

    def __init__(self) -> None:
        self._starting: set[str] = set()

    def see(self, units: Iterable[Unit], expected: float | None) -> float | None:
        """Return the expected seconds from a replica's creation until it is ready: `expected`, updated with those that
        have become ready since the last call. None if none has been measured.
        """
        live = [unit for unit in units if unit.live]
        for unit in live:
            if unit.ready and unit.uid in self._starting:
                took = max(0.0, (unit.moved - unit.created).total_seconds())
                expected = took if expected is None else WEIGHT * took + (1 - WEIGHT) * expected
        self._starting = {unit.uid for unit in live if not unit.ready and (not unit.cut_off)}
        return expected


LOOK_SECONDS = 5.0
"""Seconds between two checks of all models that have requests or more replicas than the minimum."""


TOLD_SECONDS = 60.0
"""Seconds between two updates of a model's trouble, because its figures change with each check."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The wanted replicas, those in the status `before` (None: the model is new), and the status to write."""

    desired_replicas: DesiredReplicas
    before: int | None
    scaling_status: ScalingStatus

    @property
    def replicas(self) -> int:
        """The number of wanted replicas."""
        return self.desired_replicas.replicas

    @property
    def changes(self) -> bool:
        """Whether the number of wanted replicas differs from the one in the status."""
        return self.before != self.desired_replicas.replicas


@dataclass(slots=True)
class Model:
    """What the scaler keeps of a model with `spec.scaling`. `scaling`, `scaling_status`, `ready` (number of replicas)
    and `loading` are those of its last reconcile.
    """

    history: ScalingHistory
    window: DemandWindow
    starts: Starts
    scaling: Scaling
    scaling_status: ScalingStatus
    ready: int = 0
    loading: Loading = field(default_factory=Loading)


class Scaler:
    """The demand and decisions of all models. Calls `wake` with models that need another number of replicas."""

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

    def decide(
        self,
        key: ObjectKey,
        scaling: Scaling,
        status: Mapping[str, Any],
        units: Iterable[Unit],
        *,
        revision: str,
        startup: float,
    ) -> Decision:
        """Return the decision for a model with this status and these units. The scaler follows the model from then on.

        `revision` is the one that should serve, and `startup` the seconds that a replica may take to load it.
        """
        found = [unit for unit in units if unit.live]
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
        decision = self._decide(key, model, sum(unit.ready for unit in found), found, now)
        gave_up = None if decision.replicas or model.loading.loaded else scaling_status.gave_up
        if not (decision.replicas or model.loading.loaded or model.loading.failed):
            gave_up = LoadFailure(revision, failure_of_status(status.get("conditions") or (), startup))
        return replace(decision, scaling_status=replace(decision.scaling_status, gave_up=gave_up))

    def decide_placed(
        self, key: ObjectKey, scaling: Scaling, status: Mapping[str, Any], there: int, awake: int
    ) -> Decision:
        """Return the decision for a model in a pool that is on `there` hosts, of which `awake` have it awake."""
        now = self._clock().timestamp()
        model = self._model(key, scaling, _standing_before(status, there), now)
        return self._decide(key, model, awake, (), now)

    def _model(self, key: ObjectKey, scaling: Scaling, scaling_status: ScalingStatus, now: float) -> Model:
        """Set a model's spec and status, and return its record, which is created if the model is new."""
        model = self._models.get(key)
        if model is None:
            model = Model(remembered(scaling_status, now), DemandWindow(), Starts(), scaling, scaling_status)
            self._models[key] = model
        model.scaling, model.scaling_status = scaling, scaling_status
        return model

    def _decide(self, key: ObjectKey, model: Model, ready: int, units: Sequence[Unit], now: float) -> Decision:
        model.ready = ready
        model.history.start = model.starts.see(units, model.history.start)
        desired_replicas = self._desired_replicas(key, model, now)
        return Decision(
            desired_replicas,
            model.scaling_status.desired,
            _scaling_status(model.scaling_status, desired_replicas, model.history, now),
        )

    def forget(self, key: ObjectKey) -> None:
        """Stop following a model that is deleted or has no `spec.scaling`."""
        self._models.pop(key, None)

    async def run(self) -> None:
        """Check all models forever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Queue the models whose wanted number of replicas or `trouble` differs from their status."""
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
        """Return a model's entry in each gateway's last report, except reports that are too old to count."""
        known = (report.by_key.get(key) for report in self.registry.believed(self._clock().timestamp()))
        return [demand for demand in known if demand is not None]

    def check_integrity(self) -> None:
        """Raise AssertionError if the records contradict each other."""
        self.registry.check_integrity()
        for model in self._models.values():
            model.history.check_integrity()
            model.window.check_integrity()

    def _answered(self, address: str, before: Demand | None, answer: Demand) -> None:
        now = self._clock().timestamp()
        then = None if before is None else before.by_key
        for entry in answer.models:
            key = entry.key
            model = self._models.get(key)
            if model is None:
                continue
            known = None if then is None else then.get(key, ModelDemand(entry.namespace, entry.name))
            model.window.count(known, entry, answer, now)
            if entry.held and not model.scaling_status.desired:
                self._wake(key)

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
        """Return whether the decision cannot change: no requests in flight, and the minimum of replicas is wanted."""
        return model.scaling_status.desired == model.scaling.floor and not any(e.in_flight for e in self.demand(key))


def _standing_before(status: Mapping[str, Any], there: int) -> ScalingStatus:
    """Return the scaling part of a status. For a model that was not scaled before, `desired` is `there`, the number of
    its present replicas.
    """
    scaling_status = read_scaling_status(status)
    if scaling_status.desired is None and there:  # It had replicas before spec.scaling was set.
        return replace(scaling_status, desired=there)
    return scaling_status


def _scaling_status(
    before: ScalingStatus, desired_replicas: DesiredReplicas, history: ScalingHistory, now: float
) -> ScalingStatus:
    """Return the status to write. Its reason changes with the number, figures if they are far off, trouble once a
    minute.
    """
    anew = before.desired != desired_replicas.replicas
    told = replace(
        measured(before, history.start, history.load_line.missed, anew=anew), desired=desired_replicas.replicas
    )
    if desired_replicas.trouble != before.trouble and (anew or now - history.told >= TOLD_SECONDS):
        history.told = now
        told = replace(told, trouble=desired_replicas.trouble)
    return replace(told, since=now, why=desired_replicas.words) if anew else told
