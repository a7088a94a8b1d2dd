"""Errors of a host, each with a code that the API maps to an HTTP status."""

from __future__ import annotations

from plimsoll_runtime.errors import PlimsollError


class HostError(PlimsollError):
    """Base class of a host's errors. `code` is for programs, the message for people."""

    code = "host_error"


class NotPlaced(HostError):
    """No model of this name was placed here, or it has been removed."""

    code = "not_placed"


class OperationConflict(HostError):
    """The id of an operation was used before, with other content."""

    code = "operation_conflict"


class Superseded(HostError):
    """A later operation contradicts this one for the same model."""

    code = "superseded"


class DoesNotFit(HostError):
    """The model cannot fit even if everything possible is evicted; the message has the numbers."""

    code = "does_not_fit"


class Refused(HostError):
    """A temporary refusal. `retry_after`: seconds after which to try again, at least one.

    Codes: "too_many_waiting", "waited_too_long", "memory_pressure", "load_failed", "host_closing", "device_lost".
    """

    def __init__(self, code: str, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = max(1.0, retry_after)
