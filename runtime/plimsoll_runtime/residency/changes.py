"""What the host API changes: models are placed, removed, woken, put to sleep and pinned, each by an operation."""

from __future__ import annotations

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.residency.errors import NotPlaced
from plimsoll_runtime.residency.goals import NEVER, REACHED, SLEPT, Goals
from plimsoll_runtime.residency.hoststate import HostState
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.names import ModelName
from plimsoll_runtime.residency.outcome import Outcome
from plimsoll_runtime.residency.pins import Pins
from plimsoll_runtime.residency.spec import ModelSpec, check_priority, check_spec, check_weight
from plimsoll_runtime.residency.states import Level, State
from plimsoll_runtime.residency.steering import Steering
from plimsoll_runtime.residency.waiters import Bounds, Waiters


class Changes:
    """The same operation again has the same outcome and no second effect."""

    def __init__(self, state: HostState, bounds: Bounds, steering: Steering) -> None:
        self._state = state
        self._bounds = bounds
        self._goals = Goals(state, steering)
        self._pins = Pins(state, steering)

    def place(self, name: ModelName, spec: ModelSpec, level: Level, operation: str) -> Outcome:
        """See `Host`."""
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

    def remove(self, name: ModelName, operation: str) -> Outcome:
        """See `Host`."""
        done, new = self._goals.begin(name, operation, "remove")
        if done is not None:
            return done
        model = self._state.model(name)
        self._goals.supersede(model, "the model was removed", all_of_them=True)
        model.waiters.refuse(NotPlaced(f"{name} was removed"))
        model.leaving, model.next_spec, model.wish = True, None, None
        self._pins.anew()
        return self._goals.go(model, new, NEVER)

    def wake(self, name: ModelName, operation: str) -> Outcome:
        """See `Host`."""
        done, new = self._goals.begin(name, operation, "wake")
        if done is not None:
            return done
        model = self._state.model(name)
        self._goals.supersede(model, "it was woken")
        self._want(model, Level.RESIDENT)
        return self._goals.go(model, new, REACHED[Level.RESIDENT])

    def sleep(self, name: ModelName, level: Level, operation: str) -> Outcome:
        """See `Host`."""
        if level is Level.RESIDENT:
            raise UsageError("level must be InHost or OnDisk: a model that sleeps is not Resident")
        done, new = self._goals.begin(name, operation, "sleep", level)
        if done is not None:
            return done
        model = self._state.model(name)
        if model.pinned:
            raise UsageError(f"{name} is pinned, so it would wake at once: unpin it first")
        self._goals.supersede(model, "it was put to sleep", all_of_them=True)
        model.wish = None
        if model.state not in SLEPT[level] and model.state not in (State.ABSENT, State.FETCHING):
            model.rest = level
        return self._goals.go(model, new, SLEPT[level] | {State.ABSENT})

    def pin(
        self, name: ModelName, operation: str, *, pinned: bool | None, weight: float | None, priority: int | None
    ) -> Outcome:
        """See `Host`."""
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

    async def settled(self, operation: str, seconds: float) -> Outcome:
        """See `Host`."""
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
