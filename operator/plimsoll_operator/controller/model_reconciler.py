"""Reconciles a ModelDeployment. The process may be killed at any point of a reconcile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from plimsoll_operator.canary.decision import CanaryController, TotalsSource
from plimsoll_operator.controller.dedicated_pods import DedicatedPods
from plimsoll_operator.controller.shared_pods import PlacedModels, SharedPods, unknown_pool
from plimsoll_operator.kube.context import ReconcileContext
from plimsoll_operator.kube.leader_registry import LeaderRegistry
from plimsoll_operator.kube.plan_executor import PlanExecutor
from plimsoll_operator.kube.result import PATIENCE, ReconcileResult, unless_namespace_ends
from plimsoll_operator.kube.writer import Writer
from plimsoll_operator.planning.group_turns import GroupTurns
from plimsoll_operator.planning.pods import Pod, observe_pods
from plimsoll_operator.planning.units import units_of
from plimsoll_operator.planning.upgrade_queue import UpgradeQueue
from plimsoll_operator.pools.model_status import describe_invalid_pooled
from plimsoll_operator.scaling.scaler import Scaler
from plimsoll_operator.spec.identity import KIND, Object, ObjectKey, key_of
from plimsoll_operator.spec.model_deployment import Spec, pool_of, read_spec
from plimsoll_operator.spec.template import SpecError
from plimsoll_operator.status.status import describe_invalid


class ModelReconciler:
    """Reconciles ModelDeployments. `turns` decides when a group of several pods is placed.

    Calls `wake` with other objects that need a reconcile because of this one. `scaler` decides on replicas of models
    with `spec.scaling`; without gateways it keeps the present number. `totals_of` returns the gateways' request counts.
    `leaders` gets the leaders of groups that do not serve, and has their words.
    """

    def __init__(
        self,
        context: ReconcileContext,
        upgrades: UpgradeQueue,
        *,
        wake: Callable[[ObjectKey], None],
        placed_models: PlacedModels,
        turns: GroupTurns | None = None,
        scaler: Scaler | None = None,
        totals_of: TotalsSource = lambda key: None,
        leaders: LeaderRegistry | None = None,
    ) -> None:
        self._context = context
        self._upgrades = upgrades
        self._wake = wake
        self._placed_models = placed_models
        self._scaler = scaler or Scaler(clock=context.clock)
        self._canaries = CanaryController(context.image, context.check, totals_of, context.profiles)
        self._writer = Writer(context)
        self._executor = PlanExecutor(context, self._writer)
        self.turns = turns or GroupTurns()
        self._leaders = leaders or LeaderRegistry()
        self._own = DedicatedPods(
            context, self._executor, upgrades, self.turns, self._scaler, self._canaries, self._leaders, wake
        )
        self._in_pool = SharedPods(context, self._executor, self._scaler, placed_models)

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        """Do one reconcile. Raise ApiError if the API server fails (a later reconcile continues), or NotLeaderError."""
        await self._writer.look(key)
        if not self._context.expectations.may_pass(key.of(KIND)):
            return ReconcileResult(again=PATIENCE, put_off=True)
        model = self._context.stores.models.get(key)
        if model is None:
            self._forget(key)
            return ReconcileResult(gone=True)
        if model.deleting:
            self._leave_queues(key)
            return ReconcileResult()
        pods = self._context.stores.pods_of(model)
        try:
            spec = read_spec(model.value, self._context.profiles)
            self._context.check(spec)
        except SpecError as error:
            return await self._report_invalid(model.value, pods, error)
        if spec.placement is not None:
            self._leave_queues(key)
            self._canaries.forget(key)
            return await self._in_pool.bring_closer(model.value, spec, pods)
        return await unless_namespace_ends(key, self._bring_apart(model.value, spec, pods))

    async def _bring_apart(self, item: Object, spec: Spec, pods: Sequence[Pod]) -> ReconcileResult:
        """Reconcile a model with dedicated pods. Once a replica is ready, the pool that had the model may remove it."""
        try:
            result = await self._own.bring_closer(item, spec, pods)
        except BaseException:
            self._wake_all(self.turns.interrupt(spec.key, spec.created, self._context.clock()))
            raise
        if any(unit.ready for unit in units_of(pods)):
            self._placed_models.served_elsewhere(spec.key)
        return result

    async def _report_invalid(self, item: Object, pods: Sequence[Pod], error: SpecError) -> ReconcileResult:
        self._leave_queues(key_of(item))
        units = units_of(observe_pods(pods, self._context.clock(), self._context.nodes.known))
        pool = pool_of(item)
        if pool is None:
            await self._executor.write_status(item, *describe_invalid(item, units, str(error)))
            return ReconcileResult()
        placement = self._placed_models.placement(key_of(item), pool)
        if placement is None:
            return unknown_pool(self._context, pool)
        own_ready = sum(unit.ready for unit in units)
        await self._executor.write_status(item, *describe_invalid_pooled(item, placement, own_ready, str(error)))
        return ReconcileResult()

    def _forget(self, key: ObjectKey) -> None:
        self._writer.forget(key)
        self._context.nodes.note_use(key.of(KIND), ())
        self._leave_queues(key)
        self._wake_all(self.turns.make_room(self._context.clock()))
        self._scaler.forget(key)
        self._canaries.forget(key)

    def _leave_queues(self, key: ObjectKey) -> None:
        """Remove a model from the upgrade queue and from the turns to place groups, and ask none of its leaders."""
        self._leaders.forget(key)
        self._wake_all(self._upgrades.end(key))
        self._wake_all(self.turns.end(key, self._context.clock()))

    def _wake_all(self, keys: Iterable[ObjectKey]) -> None:
        for key in keys:
            self._wake(key)
