"""How another process failed: its exit in words, and its errors as exceptions of this process."""

from __future__ import annotations

from plimsoll_runtime.engine.protocol.messages import ProcessFailed
from plimsoll_runtime.errors import (
    AddressError,
    DeviceFailedError,
    DeviceLostError,
    EngineDeadError,
    ErrorKind,
    FetchError,
    MemoryLimitError,
    ModelError,
    PlimsollError,
    SourceError,
    UsageError,
)

_CLASSES: tuple[type[PlimsollError], ...] = (
    UsageError,
    SourceError,
    ModelError,
    MemoryLimitError,
    EngineDeadError,
    DeviceFailedError,
    FetchError,
    AddressError,
)
_ERRORS = {error.kind: error for error in _CLASSES}


def error_of(failed: ProcessFailed) -> PlimsollError:
    """Return the error that a process failed with, of its original class."""
    return DeviceLostError(failed.message) if failed.device_lost else _ERRORS[ErrorKind(failed.kind)](failed.message)


def exit_text(code: int | None) -> str:
    """Describe an exit code of `subprocess` (negative for a signal; None: unknown)."""
    if code is None:
        return "has ended"
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return how + ("; the kernel kills processes when memory runs out" if code == -9 else "")
