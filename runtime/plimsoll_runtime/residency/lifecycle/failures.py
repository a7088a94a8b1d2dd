"""Records failures of models, refuses their waiting requests, and schedules new attempts."""

from __future__ import annotations

import logging

from plimsoll_runtime.errors import DeviceLostError, PlimsollError
from plimsoll_runtime.residency.errors import DoesNotFit, HostError, Refused
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.planner.actions import Refuse
from plimsoll_runtime.residency.state import HostState, Replanner
from plimsoll_runtime.residency.states import State

logger = logging.getLogger(__name__)


class Failures:
    """Records failures of models."""

    def __init__(self, state: HostState, steering: Replanner) -> None:
        self._state = state
        self._steering = steering

    def fail(self, model: Model, error: PlimsollError) -> None:
        """Record that a fetch or a wake failed, refuse the model's waiting requests, and schedule a new attempt."""
        if isinstance(error, DeviceLostError):
            self.lose_device(error)
        self.back_off(model, error)
        wait = model.retry_at - self._state.now
        count = model.waiters.refuse(Refused("load_failed", f"{model.name} cannot be loaded: {error}", wait))
        self._state.counters.refusals["load_failed"] += count
        if model.next_spec is None:  # otherwise the next spec is wanted, which has not failed
            model.wish = None
            _end_operations(model, error)
        self._steering.advance(model)

    def back_off(self, model: Model, error: PlimsollError) -> None:
        """Record a failure and schedule the next attempt. The delay doubles with each failure, up to
        `longest_back_off`.
        """
        state, settings = self._state, self._state.settings
        seconds = min(settings.longest_back_off, settings.first_back_off * 2.0 ** min(model.failures, 30))
        model.failures += 1
        model.retry_at = state.now + seconds
        model.error = error
        state.counters.failures += 1
        state.journal.note()
        state.loop.call_at(model.retry_at, self._steering.advance, model)

    def lose_device(self, error: DeviceLostError) -> None:
        """Record the loss of the device, and refuse all waiting requests; the host stops planning."""
        state = self._state
        if state.loss is not None:
            return
        state.loss = error
        state.lost.set()
        logger.error("the device is lost: %s", error)
        state.closing = True
        refused = device_lost(error)
        for model in state.models.values():
            state.counters.refusals[refused.code] += model.waiters.refuse(refused)
            _end_operations(model, error)
        state.journal.note()

    def refuse(self, model: Model, action: Refuse) -> None:
        """Refuse the requests of a model that the plan refuses."""
        state, settings = self._state, self._state.settings
        error: HostError
        if action.code == DoesNotFit.code:
            error = DoesNotFit(action.why)
            model.unfit, model.retry_at = action.why, state.now + settings.longest_back_off
        else:
            error = Refused(action.code, action.why, settings.first_back_off)
            model.retry_at = state.now + settings.first_back_off
        state.counters.refusals[action.code] += max(1, model.waiters.refuse(error))
        model.error, model.wish = error, None
        _end_operations(model, error)
        state.journal.decide(model.name, "Refused", action.why)


def device_lost(error: DeviceLostError) -> Refused:
    """Return the refusal for requests after the device is lost: the host ends, and another one may replace it."""
    return Refused("device_lost", f"the device has failed and the server is stopping: {error}", 5.0)


def _end_operations(model: Model, error: PlimsollError) -> None:
    """End the operations on a model with an error, except those that put it to sleep or remove it."""
    for operation, goals in model.operations:
        if State.RESIDENT in goals:
            operation.end(error)
    model.operations = [(operation, goals) for operation, goals in model.operations if not operation.done]
