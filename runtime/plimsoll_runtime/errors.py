"""Errors that end a start or a process, with exit codes that tell them apart, and the exceptions of decoding foreign
JSON.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class ErrorKind(Enum):
    """Why a runtime could not start or go on. The value is the word used in logs and messages."""

    USAGE = "usage"
    SOURCE = "model-source"
    MODEL = "model-invalid"
    MEMORY = "out-of-memory"
    ENGINE = "engine-died"
    DEVICE = "device-failed"
    FETCH = "model-fetch"
    ADDRESS = "address-unavailable"

    @property
    def exit_code(self) -> int:
        """Exit code of the process (the operator turns it into a condition's reason)."""
        return _EXIT_CODES[self]

    @property
    def cured_by_restart(self) -> bool:
        """Whether the same command may succeed later although nobody has changed anything."""
        return self in _TRANSIENT


_EXIT_CODES = {
    ErrorKind.USAGE: 2,
    ErrorKind.SOURCE: 3,
    ErrorKind.MODEL: 4,
    ErrorKind.MEMORY: 5,
    ErrorKind.ENGINE: 6,
    ErrorKind.DEVICE: 8,
    ErrorKind.FETCH: 9,
    ErrorKind.ADDRESS: 10,
}
_TRANSIENT = frozenset({ErrorKind.ENGINE, ErrorKind.DEVICE, ErrorKind.FETCH, ErrorKind.ADDRESS})


class PlimsollError(Exception):
    """An error a person can act on: what was wrong and what to do, in one message."""

    kind = ErrorKind.USAGE


class UsageError(PlimsollError):
    """An option is impossible or does not go with another."""


class AddressError(UsageError):
    """An address to listen on cannot be had: another process may hold its port."""

    kind = ErrorKind.ADDRESS


class SourceError(PlimsollError):
    """The model's files cannot be found, fetched or read."""

    kind = ErrorKind.SOURCE


class FetchError(SourceError):
    """The hub cannot be reached, fails or breaks off: a later try may succeed."""

    kind = ErrorKind.FETCH


class ModelError(PlimsollError):
    """The files are there but cannot be served faithfully: unknown architecture, missing or unexpected tensor."""

    kind = ErrorKind.MODEL


class UnsupportedFieldError(ModelError):
    """A field of the config says what may well be, and what our own program for the architecture does not compute."""


class MemoryLimitError(PlimsollError):
    """The model, its workspace and its cache do not fit; the message has the numbers."""

    kind = ErrorKind.MEMORY


class EngineDeadError(PlimsollError):
    """The engine process ended or broke; nothing can be served until a restart."""

    kind = ErrorKind.ENGINE


class DeviceFailedError(EngineDeadError):
    """The engine's device faulted, has damaged memory or is gone; the message says which, and what to do."""

    kind = ErrorKind.DEVICE


class DeviceLostError(DeviceFailedError):
    """The device is gone or has damaged memory: no other process is to go on with it either."""


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Text that is not UTF-8, and what is nested too deeply, are no MsgspecError."""
