"""Executes a plan on hosts: hosts in parallel, and the actions of each host in order."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from plimsoll_operator.kube.plan_executor import NotLeaderError
from plimsoll_operator.metrics import ACTION_FAILURES, ACTIONS, EVICTIONS
from plimsoll_operator.placement.records.action import Action, ActionCause, First, Move, Place, Sleep, Unload, Wake
from plimsoll_operator.pools.host_model_spec import HostModelSpec
from plimsoll_operator.pools.hosts.client import HostClient, HostError
from plimsoll_operator.pools.hosts.host_registry import HostPod, Known
from plimsoll_operator.pools.hosts.inventory import Asked
from plimsoll_operator.pools.hosts.report import Report
from plimsoll_operator.pools.placer_state import PlacerState, Refused
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.status.reasons import Reason

logger = logging.getLogger(__name__)

REFUSED_SECONDS = 30.0
"""Seconds for which a rejected request is not sent to the host again."""

EVICTING = frozenset({ActionCause.EVICTED, ActionCause.PRESSURE})
"""Causes for which a model makes room that it would otherwise keep."""

Connect = Callable[[HostPod], HostClient]
"""Returns a client for the host API of a pod."""
Tell = Callable[[ObjectKey, Reason, str], None]


class HostExecutor:
    """Executes plans on hosts. Calls `tell` with what hosts have accepted or rejected, for events."""

    def __init__(
        self, connect: Connect, tell: Tell, *, may_act: Callable[[], bool], clock: Callable[[], datetime]
    ) -> None:
        self._connect = connect
        self._tell = tell
        self._may_act = may_act
        self._clock = clock

    async def carry_out(
        self,
        pool: PlacerState,
        hosts: Sequence[Known],
        actions: Sequence[Action],
        specs: Mapping[ObjectKey, HostModelSpec],
    ) -> None:
        """Send the actions: in parallel to different hosts, in order to each. If a host has accepted an action but not
        finished it, a later reconcile sends the host's other actions.

        If a host rejects a placement, its next actions are sent all the same: they may free memory for the model.
        """
        by_host: dict[ObjectKey, list[Action]] = {}
        for action in actions:
            by_host.setdefault(_target(action), []).append(action)
        known = {known.pod.key: known for known in hosts}
        asking = [self._on_host(pool, known[host], theirs, specs) for host, theirs in by_host.items() if host in known]
        await asyncio.gather(*asking)

    async def _on_host(
        self, pool: PlacerState, known: Known, actions: Sequence[Action], specs: Mapping[ObjectKey, HostModelSpec]
    ) -> None:
        client = self._connect(known.pod)
        for action in actions:
            report = known.report
            if report is None:
                return
            refused = pool.refused.get((known.pod.uid, action.model))
            spec = specs.get(action.model)
            if refused is not None or (isinstance(action, Place | Move) and spec is None):  # The model stays as it is.
                if _only_adds(action):
                    continue
                return
            if not self._may_act():
                raise NotLeaderError("the Lease is lost")
            try:
                done = await self._act(client, known, report, action, spec)
            except HostError as error:
                self._failed(pool, known, action, spec, error)
                if error.is_refusal and _only_adds(action):
                    continue
                return
            self._accepted(pool, known, report, action, spec)
            if not done:
                return

    async def _act(
        self, client: HostClient, known: Known, report: Report, action: Action, spec: HostModelSpec | None
    ) -> bool:
        """Send an action; return whether the host has finished it."""
        model = action.model
        logger.info("%s: %s", known.pod.key, action)
        operation = _operation(report, action, _revision(spec))
        match action:
            case Move(source=source, first=First.UNLOAD, host=host) if source != host:
                return await client.remove(model, operation)
            case Place(level=level) | Move(level=level):
                assert spec is not None
                return await client.place(model, operation, spec.body, level.value)
            case Unload():
                return await client.remove(model, operation)
            case Sleep(level=level):
                return await client.sleep(model, operation, level.value)
            case Wake():
                return await client.wake(model, operation)

    def _accepted(
        self, pool: PlacerState, known: Known, report: Report, action: Action, spec: HostModelSpec | None
    ) -> None:
        """Record an accepted action and queue its event. The planner assumes a placement, move or removal until the
        host's report shows it.
        """
        now = self._clock().timestamp()
        ACTIONS.labels(_name(action), action.because.value).inc()
        if action.because in EVICTING and isinstance(action, Sleep | Unload):
            EVICTIONS.labels(*action.model).inc()
        going = isinstance(action, Unload) or (isinstance(action, Move) and _target(action) != action.host)
        if going or isinstance(action, Place | Move):
            asked = Asked(report.instance, report.sequence, _revision(spec), going, now)
            pool.asked.setdefault(known.pod.uid, {})[action.model] = asked
        if isinstance(action, Move):
            pool.moved[action.model] = now
        reason = _reason(action)
        again = isinstance(action, Place) and known.failure(action.model, _revision(spec))
        if reason is not None and not again:
            words = f"on {known.pod.name}: {action.why}" if isinstance(action, Place) else action.why
            self._tell(action.model, reason, words)

    def _failed(
        self, pool: PlacerState, known: Known, action: Action, spec: HostModelSpec | None, error: HostError
    ) -> None:
        words = str(error) if spec is None else spec.hide(str(error))
        logger.warning("%s: %s failed: %s", known.pod.key, action, words)
        ACTION_FAILURES.labels(_name(action), "refused" if error.is_refusal else "failed").inc()
        if not error.is_refusal:
            return
        message, until = f"{known.pod.name}: {words}", self._clock().timestamp() + REFUSED_SECONDS
        pool.refused[known.pod.uid, action.model] = Refused(_revision(spec), until, message)
        self._tell(action.model, Reason.REFUSED, message)

    async def pin(self, hosts: Sequence[Known], specs: Mapping[ObjectKey, HostModelSpec]) -> None:
        """Send priority, weight and pin of each model to the hosts that report other values. They are not part of a
        model's revision.
        """
        for known in hosts:
            for model, entry in known.entries.items():
                spec = specs.get(model)
                if spec is None or known.trouble or known.report is None:
                    continue
                placement = spec.spec.placement
                assert placement is not None
                worth = (placement.pinned, float(placement.weight), placement.priority)
                if (entry.pinned, entry.weight, entry.priority) == worth:
                    continue
                if not self._may_act():
                    raise NotLeaderError("the Lease is lost")
                content = f"{known.report.instance}/{model}/{entry.pinned, entry.weight, entry.priority}/{worth}"
                operation = hashlib.sha256(content.encode()).hexdigest()[:32]
                pinned, weight, priority = worth
                try:
                    await self._connect(known.pod).pin(
                        model, operation, pinned=pinned, weight=weight, priority=priority
                    )
                except HostError as error:
                    logger.warning("%s: cannot send priority and weight of %s: %s", known.pod.key, model, error)


def _name(action: Action) -> str:
    return type(action).__name__.lower()


def _revision(spec: HostModelSpec | None) -> str:
    return spec.revision if spec is not None else ""


def _target(action: Action) -> ObjectKey:
    """Return the host to which the action is sent now. A move that unloads first is sent to its source; a later plan
    places the model.
    """
    if isinstance(action, Move) and action.first is First.UNLOAD:
        return action.source
    return action.host


def _only_adds(action: Action) -> bool:
    """Return whether no later action on its host relies on memory that this one frees."""
    return isinstance(action, Place) or (isinstance(action, Move) and action.source == action.host)


def _reason(action: Action) -> Reason | None:
    """Return the reason of the action's event, None for no event."""
    if action.because is ActionCause.EVICTED and isinstance(action, Sleep | Unload):
        return Reason.EVICTED
    if isinstance(action, Unload):
        return None
    return {Place: Reason.PLACED, Move: Reason.MOVED, Wake: Reason.WOKEN, Sleep: Reason.ASLEEP}[type(action)]


def _operation(report: Report, action: Action, revision: str) -> str:
    """Return an operation ID: equal for the same action on the same state of a host, from any operator, and different
    after a change of that state.
    """
    content = (
        report.instance,
        str(report.sequence),
        type(action).__name__,
        str(action.model),
        str(getattr(action, "level", "")),
        revision,
    )
    return hashlib.sha256("/".join(content).encode()).hexdigest()[:32]
