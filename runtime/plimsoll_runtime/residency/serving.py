"""Requests on models that are resident: they begin, they end, and each counts as a use."""

from __future__ import annotations

from plimsoll_runtime.residency.hoststate import HostState
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.resident import Resident


class Serving:
    """Counts uses, and lets in who waited."""

    def __init__(self, state: HostState) -> None:
        self._state = state

    def enter(self, model: Model) -> Resident:
        """A request on a resident model begins."""
        assert model.resident is not None
        model.resident.enter()
        self._used(model, 1)
        return model.resident

    def let_in(self, model: Model) -> None:
        """A model is resident: whoever waits for it begins."""
        assert model.resident is not None
        state = self._state
        model.wish = None
        waited = model.waiters.let_in(model.resident, state.now)
        for seconds in waited:
            state.counters.wait_seconds.add(seconds)
        self._used(model, len(waited))
        state.changed(model)

    def _used(self, model: Model, times: int) -> None:
        for _ in range(times):
            model.demand = model.demand.used(self._state.now)
        if times:
            model.clock = self._state.clock
