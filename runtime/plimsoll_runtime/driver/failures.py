"""Errors of an engine's process, as they are raised in the process that it works for."""

from __future__ import annotations

from plimsoll_runtime.errors import (
    EngineDeadError,
    ErrorKind,
    MemoryLimitError,
    ModelError,
    PlimsollError,
    SourceError,
    UsageError,
)

_ERRORS: dict[ErrorKind, type[PlimsollError]] = {
    ErrorKind.USAGE: UsageError,
    ErrorKind.SOURCE: SourceError,
    ErrorKind.MODEL: ModelError,
    ErrorKind.MEMORY: MemoryLimitError,
    ErrorKind.ENGINE: EngineDeadError,
}


def error_of(kind: str, message: str) -> PlimsollError:
    """An error of the class that it had there; `kind` is the value of an ErrorKind."""
    return _ERRORS[ErrorKind(kind)](message)
