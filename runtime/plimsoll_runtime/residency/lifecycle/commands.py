"""Executes operations of the host API: place, remove, wake, sleep and pin."""

from __future__ import annotations

import asyncio
import hashlib

import msgspec

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.residency.errors import DoesNotFit, NotPlaced, Superseded
from plimsoll_runtime.residency.lifecycle.operations import Operation, Operations, OperationStatus
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.sizes import size_text
from plimsoll_runtime.residency.spec import ModelName, ModelSpec, check_priority, check_spec, check_weight
from plimsoll_runtime.residency.state import HostState, Replanner
from plimsoll_runtime.residency.states import ASLEEP, Level, State
from plimsoll_runtime.residency.wake_queue import Bounds, Waiters

REACHED = {
    Level.RESIDENT: frozenset({State.RESIDENT}),
    Level.IN_HOST: frozenset({State.IN_HOST, State.RESIDENT}),
    Level.ON_DISK: frozenset(State) - {State.ABSENT, State.FETCHING},
}
SLEPT = {Level.IN_HOST: ASLEEP, Level.ON_DISK: frozenset({State.ON_DISK})}
NEVER: frozenset[State] = frozenset()


class Goals:
    """Stores operations, each with the states that end it."""

    def __init__(self, state: HostState, steering: Replanner) -> None:
        self._state = state
        self._steering = steering
        self._operations = Operations()

    def begin(self, name: ModelName, text: str, *content: object) -> tuple[OperationStatus | None, Operation]:
        """Return the status of a known operation and the operation, or None and a new operation.

        Raises UsageError, OperationConflict.
        """
        data = msgspec.json.encode([name, *content])
        digest = hashlib.sha256(data).hexdigest()
        known = self._operations.find(text, digest)
        if known is not None:
            return self.outcome(known), known
        return None, Operation(text, digest, name)

    def go(self, model: Model, operation: Operation, goals: frozenset[State]) -> OperationStatus:
        """Store an operation that ends in one of the states `goals`, and start it."""
        self._operations.add(operation)
        self._steering.advance(model)
        if model.state in goals and model.rest is None and model.next_spec is None:
            operation.end()
        elif not operation.done and self._state.models.get(model.name) is model:
            model.operations.append((operation, goals))
        elif not operation.done:
            operation.end()
        return self.outcome(operation)

    def supersede(self, model: Model, why: str, *, all_of_them: bool = False) -> None:
        """End operations that contradict a new one."""
        for operation, goals in model.operations:
            if all_of_them or State.RESIDENT not in goals:
                operation.end(Superseded(f"{why} by a later operation"))
        model.operations = [(operation, goals) for operation, goals in model.operations if not operation.done]

    async def settled(self, text: str, seconds: float) -> OperationStatus:
        """Return the status of a known operation when it has ended, or after `seconds`.

        Raises UsageError for an unknown or forgotten operation.
        """
        found = self._operations.get(text)
        if found is None:
            raise UsageError(f"operation {text!r} is unknown or has been forgotten")
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await found.wait()
        except TimeoutError:
            return self.outcome(found)
        return self.outcome(found)

    def outcome(self, operation: Operation) -> OperationStatus:
        """Return the current status of an operation."""
        model = self._state.models.get(operation.name)
        entry = None if model is None else self._state.entry(model)
        return OperationStatus(operation.id, operation.done, entry, operation.error)


class Pins:
    """Sets the user's values of a model: pin, weight, priority."""

    def __init__(self, state: HostState, steering: Replanner) -> None:
        self._state = state
        self._steering = steering

    def check(self, name: ModelName, *, pinned: bool) -> None:
        """Raise DoesNotFit if the pinned models together would exceed the line."""
        if not pinned:
            return
        device = self._state.memory.device
        kept = [m for m in self._state.models.values() if (m.pinned and not m.leaving) or m.name == name]
        total = sum(model.found.sizes.least for model in kept if model.found is not None)
        if total + device.reserved > device.line:
            raise DoesNotFit(
                f"pinned together, {', '.join(str(model.name) for model in kept)} would take {size_text(total)}, but "
                f"of the line of {size_text(device.line)} the runtime itself takes {size_text(device.reserved)}; "
                "pin fewer"
            )

    def set(self, model: Model, *, pinned: bool, weight: float, priority: int) -> None:
        """Set the values of a model."""
        if pinned and not model.pinned:
            model.wished_at = self._state.now
        model.pinned, model.weight, model.priority = pinned, weight, priority
        self.anew()
        self._state.journal.note()

    def anew(self) -> None:
        """Retry models that did not fit."""
        for model in self._state.models.values():
            if model.unfit is not None:
                model.unfit, model.retry_at = None, self._state.now
        self._steering.kick()


class Changes:
    """Executes operations. Repeating one returns the same status and has no second effect."""

    def __init__(self, state: HostState, bounds: Bounds, steering: Replanner) -> None:
        self._state = state
        self._bounds = bounds
        self._goals = Goals(state, steering)
        self._pins = Pins(state, steering)

    def place(self, name: ModelName, spec: ModelSpec, level: Level, operation: str) -> OperationStatus:
        check_spec(spec)
        done, new = self._goals.begin(name, operation, "place", level, spec)
        if done is not None:
            return done
        state = self._state
        model = state.models.get(name)
        self._pins.check(name, pinned=spec.pinned)
        if model is None:
            model = state.models[name] = Model(name, spec, Waiters(self._bounds), state.now)
        else:
            self._place_again(model, spec)
        if level is not Level.ON_DISK:
            self._want(model, level)
        return self._goals.go(model, new, REACHED[level])

    def remove(self, name: ModelName, operation: str) -> OperationStatus:
        done, new = self._goals.begin(name, operation, "remove")
        if done is not None:
            return done
        model = self._state.model(name)
        self._goals.supersede(model, "the model was removed", all_of_them=True)
        model.waiters.refuse(NotPlaced(f"{name} was removed"))
        model.leaving, model.next_spec, model.wish = True, None, None
        self._pins.anew()
        return self._goals.go(model, new, NEVER)

    def wake(self, name: ModelName, operation: str) -> OperationStatus:
        done, new = self._goals.begin(name, operation, "wake")
        if done is not None:
            return done
        model = self._state.model(name)
        self._goals.supersede(model, "it was woken")
        self._want(model, Level.RESIDENT)
        return self._goals.go(model, new, REACHED[Level.RESIDENT])

    def sleep(self, name: ModelName, level: Level, operation: str) -> OperationStatus:
        if level is Level.RESIDENT:
            raise UsageError("level must be InHost or OnDisk; Resident is no sleep level")
        done, new = self._goals.begin(name, operation, "sleep", level)
        if done is not None:
            return done
        model = self._state.model(name)
        if model.pinned:
            raise UsageError(f"{name} is pinned and would wake immediately; unpin it first")
        self._goals.supersede(model, "it was put to sleep", all_of_them=True)
        model.wish = None
        if model.state not in SLEPT[level] and model.state not in (State.ABSENT, State.FETCHING):
            model.rest = level
        return self._goals.go(model, new, SLEPT[level] | {State.ABSENT})

    def pin(
        self, name: ModelName, operation: str, *, pinned: bool | None, weight: float | None, priority: int | None
    ) -> OperationStatus:
        if weight is not None:
            check_weight(weight)
        if priority is not None:
            check_priority(priority)
        done, new = self._goals.begin(name, operation, "pin", pinned, weight, priority)
        if done is not None:
            return done
        model = self._state.model(name)
        self._pins.check(name, pinned=bool(pinned))
        self._pins.set(
            model,
            pinned=model.pinned if pinned is None else pinned,
            weight=model.weight if weight is None else weight,
            priority=model.priority if priority is None else priority,
        )
        return self._goals.go(model, new, frozenset(State))

    async def settled(self, operation: str, seconds: float) -> OperationStatus:
        return await self._goals.settled(operation, seconds)

    def _place_again(self, model: Model, spec: ModelSpec) -> None:
        if model.leaving or spec.needs_reload != model.spec.needs_reload:
            self._goals.supersede(model, "another spec was placed", all_of_them=True)
            model.leaving, model.next_spec = False, spec
        else:
            self._goals.supersede(model, "it was placed again")
            model.spec, model.next_spec = spec, None
        self._pins.set(model, pinned=spec.pinned, weight=spec.weight, priority=spec.priority)

    def _want(self, model: Model, level: Level) -> None:
        if model.state in REACHED[level] and model.next_spec is None:
            return
        if model.rest is not None:
            model.rest = None
            model.yielding = model.state is State.DRAINING and not model.stopping
        if model.wish is not Level.RESIDENT:
            model.wants(level, self._state.now)
