"""One reconcile of a ModelDeployment. It may be killed at any point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from plimsoll_operator.canary.decision import Conductor, Sightings, nobody_tells
from plimsoll_operator.controller.dedicated_pods import OwnPods
from plimsoll_operator.controller.shared_pods import NO_POOLS, InPool, Pooled, unknown_pool
from plimsoll_operator.kube.context import Common
from plimsoll_operator.kube.plan_executor import Actor
from plimsoll_operator.kube.result import PATIENCE, Outcome, unless_namespace_ends
from plimsoll_operator.kube.writer import Writes
from plimsoll_operator.planning.pods import Pod, observe_pods
from plimsoll_operator.planning.upgrade_queue import Turns
from plimsoll_operator.pools.model_status import describe_invalid_pooled
from plimsoll_operator.scaling.scaler import Scaler
from plimsoll_operator.spec.identity import KIND, Object, ObjectKey, key_of
from plimsoll_operator.spec.model_deployment import Spec, SpecError, pool_of, read_spec
from plimsoll_operator.status.status import describe_invalid


class Reconciler:
    """Brings ModelDeployments to their specs.

    `wake` is told of other objects that need a pass because of this one. `scaler`: says how many replicas models with
    `spec.scaling` want; one that hears of no gateway keeps what there is. `sightings`: what gateways counted.
    """

    def __init__(
        self,
        common: Common,
        turns: Turns,
        *,
        wake: Callable[[ObjectKey], None],
        pooled: Pooled = NO_POOLS,
        scaler: Scaler | None = None,
        sightings: Sightings = nobody_tells,
    ) -> None:
        self._common = common
        self._turns = turns
        self._wake = wake
        self._pooled = pooled
        self._scaler = scaler or Scaler(clock=common.clock)
        self._conductor = Conductor(common.image, common.check, sightings, common.profiles)
        self._writes = Writes(common)
        self._actor = Actor(common, self._writes)
        self._own = OwnPods(common, self._actor, turns, self._scaler, self._conductor, wake)
        self._in_pool = InPool(common, self._actor, self._scaler, pooled)

    async def reconcile(self, key: ObjectKey) -> Outcome:
        """One pass. Raises ApiError when the API server fails (a later pass goes on from there) and NotLeaderError."""
        await self._writes.look(key)
        if not self._common.expectations.may_pass(key.of(KIND)):
            return Outcome(again=PATIENCE, put_off=True)
        model = self._common.caches.models.get(key)
        if model is None:
            self._forget(key)
            return Outcome(gone=True)
        if model.deleting:
            self._wake_all(self._turns.end(key))
            return Outcome()
        pods = self._common.caches.pods_of(model)
        try:
            spec = read_spec(model.value, self._common.profiles)
            self._common.check(spec)
        except SpecError as error:
            return await self._report_invalid(model.value, pods, error)
        if spec.placement is not None:
            self._wake_all(self._turns.end(key))
            self._conductor.forget(key)
            return await self._in_pool.bring_closer(model.value, spec, pods)
        return await unless_namespace_ends(key, self._bring_apart(model.value, spec, pods))

    async def _bring_apart(self, item: Object, spec: Spec, pods: Sequence[Pod]) -> Outcome:
        """In pods of its own. Once one of those serves, the pool that had it may let it go."""
        outcome = await self._own.bring_closer(item, spec, pods)
        if any(pod.ready for pod in pods):
            self._pooled.served_elsewhere(spec.key)
        return outcome

    async def _report_invalid(self, item: Object, pods: Sequence[Pod], error: SpecError) -> Outcome:
        self._wake_all(self._turns.end(key_of(item)))
        found, pool = observe_pods(pods, self._common.clock(), self._common.nodes.known), pool_of(item)
        if pool is None:
            await self._actor.write_status(item, *describe_invalid(item, found, str(error)))
            return Outcome()
        picture = self._pooled.picture(key_of(item), pool)
        if picture is None:
            return unknown_pool(self._common, pool)
        own_ready = sum(pod.ready for pod in found)
        await self._actor.write_status(item, *describe_invalid_pooled(item, picture, own_ready, str(error)))
        return Outcome()

    def _forget(self, key: ObjectKey) -> None:
        self._writes.forget(key)
        self._common.nodes.note_use(key.of(KIND), ())
        self._wake_all(self._turns.end(key))
        self._scaler.forget(key)
        self._conductor.forget(key)

    def _wake_all(self, keys: Iterable[ObjectKey]) -> None:
        for key in keys:
            self._wake(key)
