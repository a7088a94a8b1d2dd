"""How asking a replica fails, by what the replica has seen of the request."""

from __future__ import annotations


def text_of(error: BaseException) -> str:
    """What an error says, or its type if it says nothing."""
    return str(error) or type(error).__name__


class UpstreamError(Exception):
    """No answer, or not all of it; the message says why."""


class ConnectError(UpstreamError):
    """No connection was made: the replica has seen nothing of the request."""


class ConnectTimeoutError(ConnectError):
    """Not even a refusal came in time."""


class ResetError(UpstreamError):
    """The connection ended before an answer began.

    Either the replica died, or it had closed a kept-alive connection just as we wrote to it.
    """


class InvalidResponseError(UpstreamError):
    """What came is not HTTP."""


class BrokenResponseError(UpstreamError):
    """The answer began, and ended early."""
