"""Operations of the host API with the states that end them, and the values that users give a model."""

from __future__ import annotations

import asyncio
import hashlib

import msgspec

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.residency.errors import DoesNotFit, Superseded
from plimsoll_runtime.residency.lifecycle.operations import Operation, Operations, OperationStatus
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.sizes import size_text
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.residency.state import HostState, Replanner
from plimsoll_runtime.residency.states import State


class Goals:
    """Stores operations, each with the states that end it."""

    def __init__(self, state: HostState, steering: Replanner) -> None:
        self._state = state
        self._steering = steering
        self._operations = Operations()

    def begin(self, name: ModelName, text: str, *content: object) -> tuple[OperationStatus | None, Operation]:
        """Return the status of the operation with the id `text` and the operation itself; for a new id, None and a new
        operation.

        Raises UsageError for a bad id, OperationConflict if the id was used with other `content`.
        """
        data = msgspec.json.encode([name, *content])
        digest = hashlib.sha256(data).hexdigest()
        known = self._operations.find(text, digest)
        if known is not None:
            return self.outcome(known), known
        return None, Operation(text, digest, name)

    def go(self, model: Model, operation: Operation, goals: frozenset[State]) -> OperationStatus:
        """Store an operation that ends when the model is in one of the states `goals`, take the first step towards
        them, and return its status.
        """
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
        """End the model's operations that a new one contradicts, with Superseded: those that put it to sleep or remove
        it, or with `all_of_them` all.
        """
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
        """Raise DoesNotFit if `pinned`, and this model would exceed the line together with the other pinned ones."""
        if not pinned:
            return
        device = self._state.memory.device
        kept = [m for m in self._state.models.values() if (m.pinned and not m.leaving) or m.name == name]
        total = sum(model.found.sizes.least for model in kept if model.found is not None)
        if total + device.reserved > device.line:
            raise DoesNotFit(
                f"pinned together, {', '.join(str(model.name) for model in kept)} would take {size_text(total)}, but "
                f"of the {size_text(device.line)} that may be granted (--line) the runtime itself takes "
                f"{size_text(device.reserved)}; pin fewer"
            )

    def set(self, model: Model, *, pinned: bool, weight: float, priority: int) -> None:
        """Set the values of a model."""
        if pinned and not model.pinned:
            model.wished_at = self._state.now
        model.pinned, model.weight, model.priority = pinned, weight, priority
        self.anew()
        self._state.journal.note()

    def anew(self) -> None:
        """Allow new attempts for models that did not fit, and plan soon."""
        for model in self._state.models.values():
            if model.unfit is not None:
                model.unfit, model.retry_at = None, self._state.now
        self._steering.kick()
