"""Errors that end a start or a process, with their exit codes, and the exceptions that decoding foreign JSON raises."""

from __future__ import annotations

from enum import Enum

import msgspec


class ErrorKind(Enum):
    """Why a runtime could not start or continue. Logs and messages show the value."""

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
        """Exit code of the process. The operator derives a condition's reason from it."""
        return _EXIT_CODES[self]

    @property
    def cured_by_restart(self) -> bool:
        """Whether the same command may succeed later without any change."""
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
    """An error that a person can act on: its message says what is wrong and what to do."""

    kind = ErrorKind.USAGE


class UsageError(PlimsollError):
    """An option has an impossible value, or contradicts another option."""


class AddressError(UsageError):
    """The server cannot listen on an address, for example because another process uses its port."""

    kind = ErrorKind.ADDRESS


class GroupMismatch(UsageError):
    """A member of a parallel group differs from its leader; the message names the member, the field and both values."""


class SourceError(PlimsollError):
    """The model's files cannot be found, fetched or read."""

    kind = ErrorKind.SOURCE


class FetchError(SourceError):
    """The hub cannot be reached, answers with an error or drops the connection; a later try may succeed."""

    kind = ErrorKind.FETCH


class ModelError(PlimsollError):
    """The files exist but cannot be served faithfully: an unknown architecture, or a missing or unexpected tensor."""

    kind = ErrorKind.MODEL


class UnsupportedFieldError(ModelError):
    """A config field has a valid value that our own program for the architecture does not implement."""


class MemoryLimitError(PlimsollError):
    """The model, its workspace and its cache do not fit into memory; the message has the numbers."""

    kind = ErrorKind.MEMORY


class EngineDeadError(PlimsollError):
    """The engine process ended or failed; the server cannot answer requests until a restart."""

    kind = ErrorKind.ENGINE


class DeviceFailedError(EngineDeadError):
    """The device faulted, has damaged memory or is gone; the message says which, and what to do."""

    kind = ErrorKind.DEVICE


class DeviceLostError(DeviceFailedError):
    """The device is gone or has damaged memory: no other process may use it either."""


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Decoding raises the last two for text that is not UTF-8 and for nesting that is too deep."""
