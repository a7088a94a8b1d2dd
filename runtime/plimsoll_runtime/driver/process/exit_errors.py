"""How another process failed: its end in words, and its errors as they are raised in the process that it works for."""

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
    """An error of the class that it had there; `kind` is the value of an ErrorKind."""
    return DeviceLostError(message) if device_lost else _ERRORS[ErrorKind(kind)](message)


def exit_text(code: int | None) -> str:
    """`code` as `subprocess` tells it, negative for a signal; None where it is not known."""
    if code is None:
        return "has ended"
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return how + ("; the kernel kills what uses more memory than there is" if code == -9 else "")
