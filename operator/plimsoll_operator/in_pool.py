"""A model in a pool: its planner places it; here its own pods go once its hosts answer, and its status is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll_operator.actor import Actor
from plimsoll_operator.common import Common
from plimsoll_operator.identity import KIND, Object
from plimsoll_operator.observe import Pod, observe_pods
from plimsoll_operator.outcome import Outcome
from plimsoll_operator.pooled import Pooled, plan_own, unknown_pool
from plimsoll_operator.pools.picture import Picture, Where
from plimsoll_operator.pools.pooled_status import describe_pooled
from plimsoll_operator.scaling.scaler import Decision, Scaler
from plimsoll_operator.scaling.told import news, scaling_fields
from plimsoll_operator.spec import Spec
from plimsoll_operator.status import replicas_ignored


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
