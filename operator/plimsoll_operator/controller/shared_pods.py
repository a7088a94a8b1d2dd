"""A model in a pool: drops its dedicated pods once its hosts answer, and writes its status. The planner places it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from plimsoll_operator.kube.context import Common
from plimsoll_operator.kube.plan_executor import Actor
from plimsoll_operator.kube.result import A_MOMENT, Outcome
from plimsoll_operator.planning.plan import DeletePod
from plimsoll_operator.planning.pods import Pod, observe_pods
from plimsoll_operator.pools.model_placement import Picture, Problem, Told, Where, shown
from plimsoll_operator.pools.model_status import describe_pooled
from plimsoll_operator.scaling.scaler import Decision, Scaler
from plimsoll_operator.scaling.status import news, scaling_fields
from plimsoll_operator.spec.identity import KIND, Object, ObjectKey
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.status.reasons import Reason
from plimsoll_operator.status.status import replicas_ignored


class Pooled(Protocol):
    """Knows where models with placement are."""

    def picture(self, model: ObjectKey, pool: ObjectKey) -> Picture | None:
        """Where a model is in its pool; None while that is not known yet."""

    def untold(self, model: ObjectKey) -> list[Told]:
        """Decisions about a model that no event tells of yet; the caller tells them."""

    def served_elsewhere(self, model: ObjectKey) -> None:
        """A model answers where it is to be: pools that it has left may let it go."""


class NoPools:
    """For an operator that serves none."""

    def picture(self, model: ObjectKey, pool: ObjectKey) -> Picture | None:
        """Nowhere."""
        why = Problem(Reason.POOL_NOT_FOUND, "this operator serves no RuntimePools")
        return Picture(shown(model, pool), problem=why)

    def untold(self, model: ObjectKey) -> list[Told]:
        """None."""
        return []

    def served_elsewhere(self, model: ObjectKey) -> None:
        """Nobody has it."""


NO_POOLS = NoPools()


def unknown_pool(common: Common, pool: ObjectKey) -> Outcome:
    """When to look again at a model of whose pool nothing is known yet; a pool that is there wakes its models."""
    return Outcome(again=A_MOMENT if common.caches.pools.get(pool) is None else None)


def plan_own(pods: Iterable[Pod], *, answered: bool, pool: str) -> list[DeletePod]:
    """Which pods of its own go: those that do not serve at once, the others when its pool answers for it."""
    going = [pod for pod in pods if not pod.stopping and (answered or not (pod.ready or pod.cut_off))]
    return [DeletePod(pod.name, pod.uid, f"RuntimePool {pool} serves its model") for pod in going]


@dataclass(frozen=True, slots=True)
class InPool:
    """`pooled` knows where models are."""

    common: Common
    actor: Actor
    scaler: Scaler
    pooled: Pooled

    async def bring_closer(self, item: Object, spec: Spec, pods: Sequence[Pod]) -> Outcome:
        """What one pass can do; `pods` are the model's own. Raises ApiError and NotLeaderError."""
        assert spec.placement is not None
        picture = self.pooled.picture(spec.key, spec.placement.key)
        if picture is None:
            return unknown_pool(self.common, spec.placement.key)
        found = observe_pods(pods, self.common.clock(), self.common.nodes.known)
        self.common.nodes.note_use(spec.key.of(KIND), (p.node for p in found if p.node))
        going = plan_own(found, answered=picture.answering > 0 or spec.replicas == 0, pool=picture.pool)
        _, failure = await self.actor.apply(item, spec.key, going)
        for told in self.pooled.untold(spec.key):
            await self.actor.tell(item, told.reason, told.why, warning=told.warning)
        own = sum(pod.ready for pod in found if not any(a.uid == pod.uid for a in going))
        decision = self._decide(spec, item, picture)
        spec = spec if decision is None else spec.scaled(decision.replicas)
        fields, conditions = describe_pooled(spec, picture, own, self.common.names.losses(spec))
        conditions += replicas_ignored(item)
        await self.actor.write_status(item, fields | scaling_fields(decision), conditions)
        if decision is not None and (changed := news(decision)) is not None:
            await self.actor.tell(item, *changed)
        late = await self.actor.keep_budget(item, spec.owner, None)
        if (error := failure or late) is not None:
            raise error
        self.pooled.served_elsewhere(spec.key)
        return Outcome()

    def _decide(self, spec: Spec, item: Object, picture: Picture) -> Decision | None:
        """How many replicas it wants, if it scales: its planner reads that from the status."""
        if spec.scaling is None:
            self.scaler.forget(spec.key)
            return None
        awake = sum(copy.where is Where.RESIDENT for copy in picture.copies)
        status = item.get("status") or {}
        return self.scaler.decide_placed(spec.key, spec.scaling, status, len(picture.copies), awake)
