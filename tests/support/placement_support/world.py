"""A pool that executes plans and checks every step, with sums independent of the planner's."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.action import Action, First, Move, Place, Sleep, Unload, Wake
from plimsoll_operator.placement.records.host import Copy, Host, Sleepers
from plimsoll_operator.placement.records.level import Condition, Level, State
from plimsoll_operator.placement.records.model import Model
from plimsoll_operator.placement.records.plan import Plan
from plimsoll_operator.placement.records.pool import PoolState

ON_DEVICE = (State.RESIDENT, State.WAKING, State.DRAINING)


@dataclass
class World:
    """Hosts and their copies, by key."""

    state: PoolState
    hosts: dict[ObjectKey, Host] = field(default_factory=dict)
    copies: dict[tuple[ObjectKey, ObjectKey], Copy] = field(default_factory=dict)
    moved: set[ObjectKey] = field(default_factory=set)
    placed: set[tuple[ObjectKey, ObjectKey]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.hosts = {host.key: host for host in self.state.hosts}
        self.models = {model.key: model for model in self.state.models}
        self.copies = {(copy.model, host.key): copy for host in self.state.hosts for copy in host.models}
        self.sizes = {model.key: self._sizes(model) for model in self.state.models}
        self.seconds = {key: self._seconds(key) for key in self.models}
        self.foreign = {
            host.key: max(0, host.sleepers.used - sum(c.host for c in host.models if not c.state.awake))
            for host in self.state.hosts
        }

    def carry_out(self, plan: Plan) -> PoolState:
        """Execute every action to its end, in order; return the state as hosts would report it."""
        for action in plan.actions:
            before = {key: self.over(key) for key in self.hosts}
            self._do(action)
            if isinstance(action, Place | Move):
                self.placed.add((action.model, action.host))
            for key in self.hosts:
                for now, then, what in zip(self.over(key), before[key], ("line", "sleepers"), strict=True):
                    assert now <= max(0, then), f"{action} overdraws {what} of {key} by {now} bytes"
        return self.report()

    def over(self, key: ObjectKey) -> tuple[int, int]:
        """Return the bytes by which a host exceeds its line, and its sleepers' memory."""
        host = self.hosts[key]
        here = [copy for (_, where), copy in self.copies.items() if where == key]
        device = host.reserved + sum(self.held(copy) for copy in here if copy.state in ON_DEVICE)
        images = self.foreign[key] + sum(copy.host for copy in here if not copy.state.awake)
        return device - host.line, images - host.sleepers.capacity

    def held(self, copy: Copy) -> int:
        """Return the bytes that a copy cannot give back; an idle one shrinks its KV cache to the minimum."""
        model = self.models.get(copy.model)
        busy = copy.active or copy.waiting or copy.state is not State.RESIDENT or copy.going
        least = copy.kv if model is None or busy else min(copy.kv, model.need.kv)
        return copy.weights + copy.workspace + least

    def report(self) -> PoolState:
        """Return the hosts' reports."""
        hosts = []
        for key, host in self.hosts.items():
            models = tuple(self._measured(copy) for (_, where), copy in self.copies.items() if where == key)
            used = self.foreign[key] + sum(copy.host for copy in models if not copy.state.awake)
            sleepers = Sleepers(host.sleepers.capacity, used)
            hosts.append(msgspec.structs.replace(host, models=models, sleepers=sleepers))
        wanted = tuple(
            msgspec.structs.replace(model, moved=self.state.now) if model.key in self.moved else model
            for model in self.models.values()
        )
        return msgspec.structs.replace(self.state, hosts=tuple(hosts), models=wanted)

    def _measured(self, copy: Copy) -> Copy:
        """Return a sleeping copy with the measured sizes of its model."""
        model = self.models.get(copy.model)
        if model is None or model.revision != copy.revision or copy.state not in (State.ON_DISK, State.IN_HOST):
            return copy
        weights, workspace, _ = self.sizes[model.key]
        return msgspec.structs.replace(copy, weights=weights, workspace=workspace)

    def _do(self, action: Action) -> None:
        key, host, before = action.model, self.hosts[action.host], self.over(action.host)
        assert host.condition is not Condition.LOST, f"{action} asks a host that is not there"
        match action:
            case Place():
                assert host.condition is Condition.READY, f"{action}: {host.key} is {host.condition}"
                self._put(self.models[key], host, action.level)
            case Unload():
                self._take(key, host.key)
            case Sleep():
                self._check_gives_way(action)
                copy = self.copies[key, host.key]
                assert copy.state in (State.RESIDENT, State.IN_HOST), f"{action}: it is {copy.state}"
                self._set(copy, host, State(action.level))
            case Wake():
                copy = self.copies[key, host.key]
                assert copy.state in (State.IN_HOST, State.ON_DISK), f"{action}: it is {copy.state}"
                assert copy.revision == self.models[key].revision, f"{action} wakes another revision"
                self._set(copy, host, State.RESIDENT)
            case Move():
                assert (key, action.source) not in self.placed, f"{action}: a placed or moved copy moves again"
                assert host.condition is Condition.READY or action.source == action.host, f"{host.key} takes nothing"
                if self.copies[key, action.source].state.awake:
                    self.moved.add(key)
                if action.first is First.UNLOAD:
                    self._take(key, action.source)
                self._put(self.models[key], host, action.level)
                if action.first is First.PLACE:
                    self._check_both(host.key, before)
                    self._take(key, action.source)

    def _check_both(self, key: ObjectKey, before: tuple[int, int]) -> None:
        """Assert that both copies of a moving model fit at the same time."""
        for now, then in zip(self.over(key), before, strict=True):
            assert now <= max(0, then), f"{key} has no memory for a second copy next to the leaving one"

    def _seconds(self, key: ObjectKey) -> float:
        revision = self.models[key].revision
        return max(
            (c.load_seconds for (k, _), c in self.copies.items() if k == key and c.revision == revision), default=0
        )

    def _sizes(self, model: Model) -> tuple[int, int, int]:
        """Return weights, workspace and image: the largest measured ones, or the predicted ones."""
        found = [c for (key, _), c in self.copies.items() if key == model.key and c.revision == model.revision]
        best = max(found, key=lambda c: c.weights + c.workspace, default=None)
        measured = best is not None and best.weights + best.workspace > 0
        weights, workspace = (
            (best.weights, best.workspace) if best and measured else (model.need.weights, model.need.workspace)
        )
        return weights, workspace, max((c.host for c in found), default=0) or model.need.host or model.need.weights

    def _check_gives_way(self, action: Sleep) -> None:
        copy, model = self.copies[action.model, action.host], self.models.get(action.model)
        assert not copy.active, f"{action} stops requests in flight"
        if copy.state is State.RESIDENT:
            assert not copy.waiting, f"{action} stops waiting requests"
            host = self.hosts[action.host]
            pinned = model is not None and model.pinned and model.revision == copy.revision
            pinned = pinned and model is not None and model.device in ("", host.device)
            assert not pinned, f"{action} evicts a pinned model"
            assert self.state.now - copy.since >= self.state.rules.minimum_residency, f"{action} is too early"

    def _put(self, model: Model, host: Host, level: Level) -> None:
        assert (model.key, host.key) not in self.copies, f"{model.key} is on {host.key} already"
        assert model.device in ("", host.device), f"{model.key} does not run on {host.key}"
        weights, workspace, _ = self.sizes[model.key]
        copy = Copy(model.key, model.revision, State.ON_DISK, weights, workspace, since=self.state.now)
        copy = msgspec.structs.replace(copy, load_seconds=self.seconds[model.key])
        self.copies[model.key, host.key] = copy
        if level is not Level.ON_DISK:
            self._set(copy, host, State(level))

    def _take(self, key: ObjectKey, host: ObjectKey) -> None:
        copy = self.copies.pop((key, host))
        assert not copy.active, f"{key} on {host} has requests in flight"
        assert copy.state.settled, f"{key} on {host} is {copy.state}"

    def _set(self, copy: Copy, host: Host, state: State) -> None:
        """Set the sizes that the host has measured, or the predicted ones of a model that was never loaded."""
        model = self.models.get(copy.model)
        weights, workspace, kv, image = copy.weights, copy.workspace, copy.kv, copy.host
        if model is not None and state is State.RESIDENT:
            weights, workspace = self.sizes[model.key][:2]
            kv = model.need.kv
        if model is not None and state is State.IN_HOST:
            image = self.sizes[model.key][2]
        self.copies[copy.model, host.key] = msgspec.structs.replace(
            copy,
            state=state,
            weights=weights,
            workspace=workspace,
            kv=kv if state is State.RESIDENT else 0,
            host=image if state is State.IN_HOST else 0,
            since=self.state.now,
        )
