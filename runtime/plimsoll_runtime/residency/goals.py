"""Operations on models: each is begun once, and ends when its model is in one of the states that it is for."""

from __future__ import annotations

import asyncio
import hashlib

import msgspec

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.residency.errors import Superseded
from plimsoll_runtime.residency.hoststate import HostState
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.names import ModelName
from plimsoll_runtime.residency.operations import Operation, Operations
from plimsoll_runtime.residency.outcome import Outcome
from plimsoll_runtime.residency.states import ASLEEP, Level, State
from plimsoll_runtime.residency.steering import Steering

REACHED = {
    Level.RESIDENT: frozenset({State.RESIDENT}),
    Level.IN_HOST: frozenset({State.IN_HOST, State.RESIDENT}),
    Level.ON_DISK: frozenset(State) - {State.ABSENT, State.FETCHING},
}
SLEPT = {Level.IN_HOST: ASLEEP, Level.ON_DISK: frozenset({State.ON_DISK})}
NEVER: frozenset[State] = frozenset()


class Goals:
    """Remembers operations, and which states end them."""

    def __init__(self, state: HostState, steering: Steering) -> None:
        self._state = state
        self._steering = steering
        self._operations = Operations()

    def begin(self, name: ModelName, text: str, *content: object) -> tuple[Outcome | None, Operation]:
        """The outcome of an operation that is known already, else a new one that nothing was done about yet.

        Raises UsageError, OperationConflict.
        """
        data = msgspec.json.encode([name, *content])
        digest = hashlib.sha256(data).hexdigest()
        known = self._operations.find(text, digest)
        if known is not None:
            return self.outcome(known), known
        return None, Operation(text, digest, name)

    def go(self, model: Model, operation: Operation, goals: frozenset[State]) -> Outcome:
        """Remember the operation, which ends when the model is in one of these states, and begin."""
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
        """Operations that want the opposite end here."""
        for operation, goals in model.operations:
            if all_of_them or State.RESIDENT not in goals:
                operation.end(Superseded(f"{why} by a later operation"))
        model.operations = [(operation, goals) for operation, goals in model.operations if not operation.done]

    async def settled(self, text: str, seconds: float) -> Outcome:
        """The outcome of an operation that is known, once it has ended or so many seconds have passed.

        Raises UsageError for one that is not known (any more).
        """
        found = self._operations.get(text)
        if found is None:
            raise UsageError(f"there is no operation {text!r}, or it has been forgotten")
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await found.wait()
        except TimeoutError:
            return self.outcome(found)
        return self.outcome(found)

    def outcome(self, operation: Operation) -> Outcome:
        """As it stands."""
        model = self._state.models.get(operation.name)
        entry = None if model is None else self._state.entry(model)
        return Outcome(operation.id, operation.done, entry, operation.error)
