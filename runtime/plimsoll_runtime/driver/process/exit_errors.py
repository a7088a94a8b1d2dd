"""How another process failed: its exit in words, and its errors as exceptions of this process."""

from __future__ import annotations

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

_ERRORS: dict[ErrorKind, type[PlimsollError]] = {
    ErrorKind.USAGE: UsageError,
    ErrorKind.SOURCE: SourceError,
    ErrorKind.MODEL: ModelError,
    ErrorKind.MEMORY: MemoryLimitError,
    ErrorKind.ENGINE: EngineDeadError,
    ErrorKind.DEVICE: DeviceFailedError,
    ErrorKind.FETCH: FetchError,
    ErrorKind.ADDRESS: AddressError,
}


def error_of(kind: str, message: str, *, device_lost: bool = False) -> PlimsollError:
    """Return an error of the original class; `kind` is the value of an ErrorKind."""
    return DeviceLostError(message) if device_lost else _ERRORS[ErrorKind(kind)](message)


def exit_text(code: int | None) -> str:
    """Describe an exit code of `subprocess` (negative for a signal; None: unknown)."""
    if code is None:
        return "has ended"
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return how + ("; the kernel kills processes when memory runs out" if code == -9 else "")
