"""KV caches that shrink and grow while engines serve: the ledger is ahead of what grows, behind what shrinks."""

from __future__ import annotations

import logging

from plimsoll_runtime.errors import PlimsollError
from plimsoll_runtime.residency.hoststate import HostState
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.resident import Resident
from plimsoll_runtime.residency.steering import Steering

logger = logging.getLogger(__name__)


class Resizing:
    """Resizes KV caches."""

    def __init__(self, state: HostState, steering: Steering) -> None:
        self._state = state
        self._steering = steering

    def begin(self, model: Model, kv: int) -> None:
        """Bring the cache of a resident model to so many bytes. What it grows by must be free."""
        assert model.resident is not None
        device = self._state.memory.device
        grant = device.grants[model.name]
        if kv > grant.kv:
            device.change(model.name, grant.with_kv(kv))
        model.kv_wanted = kv
        model.resizing = self._state.tasks.spawn(self._resize(model, model.resident, kv))

    def settle(self, model: Model) -> None:
        """What a cache has given back by now is free, where none is being resized."""
        model.kv_floor = 0
        if model.resident is not None and model.kv_wanted is None and not model.stopping:
            self._settle(model, model.resident)

    async def _resize(self, model: Model, resident: Resident, kv: int) -> None:
        try:
            await resident.engine.resize(kv)
            self._state.counters.resizes += 1
        except PlimsollError as error:
            logger.warning("%s's KV cache stays as it is: %s", model.name, error)
        finally:
            if model.resident is resident:
                model.kv_wanted, model.resizing = None, None
        if model.resident is resident and not model.stopping:
            self._settle(model, resident)
            if resident.engine.kv_bytes > kv:
                model.kv_floor = resident.engine.kv_bytes
            self._steering.kick()

    def _settle(self, model: Model, resident: Resident) -> None:
        """The ledger follows a KV cache that has shrunk; it never grows without a grant."""
        device = self._state.memory.device
        grant = device.grants[model.name]
        if resident.engine.kv_bytes < grant.kv:
            device.change(model.name, grant.with_kv(resident.engine.kv_bytes))
