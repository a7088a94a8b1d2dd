"""Reconciles a model in a pool: deletes its dedicated pods once its hosts serve it, and writes its status. The planner
places it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from plimsoll_operator.kube.context import ReconcileContext
from plimsoll_operator.kube.plan_executor import PlanExecutor
from plimsoll_operator.kube.result import A_MOMENT, ReconcileResult
from plimsoll_operator.planning.actions import DeletePod
from plimsoll_operator.planning.pods import Pod, observe_pods
from plimsoll_operator.planning.units import Unit, units_of
from plimsoll_operator.pools.model_placement import ModelPlacement, PlacementEvent, Where
from plimsoll_operator.pools.model_status import describe_pooled
from plimsoll_operator.scaling.scaler import Decision, Scaler
from plimsoll_operator.scaling.status import news, scaling_fields
from plimsoll_operator.spec.identity import KIND, Object, ObjectKey
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.status.status import replicas_ignored


class PlacedModels(Protocol):
    """Returns the placements of models in pools."""

    def placement(self, model: ObjectKey, pool: ObjectKey) -> ModelPlacement | None:
        """Return the placement of a model in its pool; None while it is not known."""

    def untold(self, model: ObjectKey) -> list[PlacementEvent]:
        """Return decisions about a model that have no event yet, and forget them; the caller writes the events."""

    def served_elsewhere(self, model: ObjectKey) -> None:
        """Allow pools that a model has left to remove it, because its new pool or its dedicated pods serve it."""


def unknown_pool(context: ReconcileContext, pool: ObjectKey) -> ReconcileResult:
    """Return the result for a model whose pool is missing or not planned yet. For a missing pool it asks for another
    reconcile after `A_MOMENT`; an existing pool queues its models once it is planned.
    """
    return ReconcileResult(again=A_MOMENT if context.stores.pools.get(pool) is None else None)


def plan_dedicated(units: Iterable[Unit], *, answered: bool, pool: str) -> list[DeletePod]:
    """Return the dedicated pods to delete: those of unready units immediately, the others once the pool serves the
    model (`answered`). A unit that was ready when its nodes last reported counts as ready.
    """
    going = [unit for unit in units if not unit.stopping and (answered or not (unit.ready or unit.cut_off))]
    why = f"RuntimePool {pool} serves its model"
    return [DeletePod(pod.name, pod.uid, why) for unit in going for pod in unit.pods]


@dataclass(frozen=True, slots=True)
class SharedPods:
    """Reconciles models in pools."""

    context: ReconcileContext
    executor: PlanExecutor
    scaler: Scaler
    placed_models: PlacedModels

    async def bring_closer(self, item: Object, spec: Spec, pods: Sequence[Pod]) -> ReconcileResult:
        """Do one reconcile; `pods` are the model's dedicated ones. Raise ApiError or NotLeaderError."""
        assert spec.placement is not None
        placement = self.placed_models.placement(spec.key, spec.placement.key)
        if placement is None:
            return unknown_pool(self.context, spec.placement.key)
        found = observe_pods(pods, self.context.clock(), self.context.nodes.known)
        self.context.nodes.note_use(spec.key.of(KIND), (p.node for p in found if p.node))
        units = units_of(found)
        going = plan_dedicated(units, answered=placement.answering > 0 or spec.replicas == 0, pool=placement.pool)
        _, failure = await self.executor.apply(item, spec.key, going)
        for told in self.placed_models.untold(spec.key):
            await self.executor.tell(item, told.reason, told.why, warning=told.warning)
        own = sum(unit.ready for unit in units if not any(a.uid == unit.uid for a in going))
        decision = self._decide(spec, item, placement)
        spec = spec if decision is None else spec.scaled(decision.replicas)
        fields, conditions = describe_pooled(spec, placement, own, self.context.names.conflicts(spec))
        conditions += replicas_ignored(item)
        await self.executor.write_status(item, fields | scaling_fields(decision), conditions)
        if decision is not None and (changed := news(decision)) is not None:
            await self.executor.tell(item, *changed)
        late = await self.executor.keep_budget(item, spec.owner, None)
        if (error := failure or late) is not None:
            raise error
        self.placed_models.served_elsewhere(spec.key)
        return ReconcileResult()

    def _decide(self, spec: Spec, item: Object, placement: ModelPlacement) -> Decision | None:
        """Return the scaler's decision, which the planner reads from the status; None for a model without
        `spec.scaling`.
        """
        if spec.scaling is None:
            self.scaler.forget(spec.key)
            return None
        awake = sum(copy.where is Where.RESIDENT for copy in placement.copies)
        status = item.get("status") or {}
        return self.scaler.decide_placed(spec.key, spec.scaling, status, len(placement.copies), awake)
