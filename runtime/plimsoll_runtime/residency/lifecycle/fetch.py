"""From Absent to OnDisk: fetches a model's files and reads its sizes from their headers."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from plimsoll_runtime.errors import PlimsollError
from plimsoll_runtime.residency.errors import HostError
from plimsoll_runtime.residency.lifecycle.failures import Failures
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.sizes import Seconds, Sizes
from plimsoll_runtime.residency.spec import least_kv
from plimsoll_runtime.residency.state import HostState, Replanner
from plimsoll_runtime.residency.states import State

logger = logging.getLogger(__name__)


class FetchDriver:
    """Fetches models."""

    def __init__(self, state: HostState, failures: Failures, steering: Replanner) -> None:
        self._state = state
        self._failures = failures
        self._steering = steering

    def begin(self, model: Model) -> None:
        """Start to fetch an Absent model."""
        model.become(State.FETCHING, "being fetched", self._state.now)
        self._state.changed(model)
        model.task = self._state.tasks.spawn(self._fetch(model))

    async def _fetch(self, model: Model) -> None:
        state = self._state
        try:
            found = await state.engines.find(model.name, model.spec)
        except asyncio.CancelledError:
            model.task = None
            model.become(State.ABSENT, "its fetch was cancelled", state.now)
            state.loop.call_soon(self._steering.advance, model)
            raise
        except PlimsollError as error:
            self._failed(model, error)
        except Exception as error:
            logger.exception("cannot fetch %s", model.name)
            self._failed(model, HostError(f"{type(error).__name__}: {error}"))
        else:
            model.task = None
            model.found = replace(found, sizes=_with_least_kv(found.sizes, least_kv(model.spec)))
            model.seconds = Seconds.guessed(found.sizes.weights)
            model.error, model.failures = None, 0
            model.become(State.ON_DISK, "its files are on disk", state.now)
            state.changed(model)
            self._steering.advance(model)

    def _failed(self, model: Model, error: PlimsollError) -> None:
        model.task = None
        model.become(State.ABSENT, "it could not be fetched", self._state.now)
        self._state.changed(model)
        self._failures.fail(model, error)


def _with_least_kv(sizes: Sizes, least: int | None) -> Sizes:
    """Raise the minimum KV cache to the spec's minimum, if that is larger."""
    kv = max(sizes.kv_minimum, least or 0)
    return replace(sizes, kv_minimum=kv, kv_useful=max(kv, sizes.kv_useful))
