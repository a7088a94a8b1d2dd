"""Attention backends that have failed on a rank of a parallel group. The next generation of ranks uses others.

A step cannot be repeated on another backend, as one process does: the other ranks have added up the results of this
rank's earlier layers, and wait for the next ones.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import EngineDeadError

logger = logging.getLogger(__name__)


class BackendLostError(EngineDeadError):
    """The attention backend of a rank failed, and the rank has ended."""

    def __init__(self, message: str, backend: str) -> None:
        super().__init__(message)
        self.backend = backend


class FailedBackends:
    """The names of the backends that have failed, in order. Only the automatic choice has others to use."""

    def __init__(self, config: EngineConfig) -> None:
        self._chooses = config.attention_backend == "auto"
        self._names: list[str] = []
        self._is_new = False

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._names)

    def add(self, error: BaseException) -> bool:
        """Note the backend that failed with an error, or with its cause. Return whether the next generation may use
        another one: False for other errors, and for a backend that failed although it was the last one.
        """
        lost = error if isinstance(error, BackendLostError) else error.__cause__
        if not isinstance(lost, BackendLostError) or not self._chooses or lost.backend in self._names:
            return False
        self._names.append(lost.backend)
        self._is_new = True
        logger.warning(
            "the attention backend %s is not used again; select another one at the start with --attention-backend",
            lost.backend,
        )
        return True

    def take_new(self) -> bool:
        """Return whether a backend was added since the last call: weights may have to be read again for another."""
        is_new, self._is_new = self._is_new, False
        return is_new
