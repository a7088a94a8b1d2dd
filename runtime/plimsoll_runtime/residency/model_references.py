"""Connects a request to its model: immediately if it is resident, else after a bounded wait for its wake."""

from __future__ import annotations

import asyncio

from plimsoll_runtime.residency.engines.base import Resident
from plimsoll_runtime.residency.errors import DoesNotFit, Refused
from plimsoll_runtime.residency.lifecycle.failures import device_lost
from plimsoll_runtime.residency.lifecycle.supervisor import Supervisor
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.residency.state import HostState
from plimsoll_runtime.residency.states import State


class Admission:
    """Gives requests references to models."""

    def __init__(self, state: HostState, supervisor: Supervisor) -> None:
        self._state = state
        self._supervisor = supervisor

    async def admit(self, name: ModelName, size: int, wait: float | None) -> Resident:
        """Return the resident model and count the request in flight. Raises NotPlaced, DoesNotFit, Refused."""
        state = self._state
        if state.loss is not None:
            raise device_lost(state.loss)
        if state.closing:
            raise Refused("host_closing", "the server is shutting down; try another one", 1.0)
        model = state.model(name)
        if model.state is State.RESIDENT and model.resident is not None and model.resident.engine.failure is None:
            return self._supervisor.enter(model)
        self._check_hope(model)
        most = state.settings.wait_seconds
        return await self._wait(model, size, most if wait is None else min(wait, most))

    async def _wait(self, model: Model, size: int, longest: float) -> Resident:
        state = self._state
        try:
            waiter = model.waiters.add(state.now, size, _expected(model))
        except Refused as error:
            state.counters.refusals[error.code] += 1
            raise
        self._supervisor.kick()
        try:
            async with asyncio.timeout(longest):
                return await waiter.future
        except BaseException as error:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                self._supervisor.leave(waiter.future.result())
            model.waiters.give_up(waiter)
            self._supervisor.kick()
            if isinstance(error, TimeoutError):
                state.counters.refusals["waited_too_long"] += 1
                raise Refused(
                    "waited_too_long",
                    f"{model.name} was not awake within {longest:g} s ({model.why}); try again",
                    _expected(model),
                ) from error
            raise

    def _check_hope(self, model: Model) -> None:
        """Raise DoesNotFit or Refused if waiting is pointless: the model cannot fit, or has failed repeatedly."""
        left = model.retry_at - self._state.now
        if left <= 0:
            return
        if model.unfit is not None:
            raise DoesNotFit(model.unfit)
        if model.failures > 1 and left > self._state.settings.first_back_off:
            self._state.counters.refusals["load_failed"] += 1
            raise Refused("load_failed", f"{model.name} cannot be loaded: {model.error}", left)


def _expected(model: Model) -> float:
    """Return the expected seconds until the model is awake."""
    return model.seconds.wake if model.image is not None else model.seconds.from_disk
