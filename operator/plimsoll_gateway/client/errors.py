"""Errors of requests to replicas, by how much of the request the replica has received."""

from __future__ import annotations


def text_of(error: BaseException) -> str:
    """Return the message of an error, or its type if it has none."""
    return str(error) or type(error).__name__


class UpstreamError(Exception):
    """The replica sent no response, or an incomplete one; the message has the reason."""


class ConnectError(UpstreamError):
    """No connection was made: the replica has received nothing of the request."""


class ConnectTimeoutError(ConnectError):
    """The connection attempt timed out."""


class ResetError(UpstreamError):
    """The connection ended before a response began.

    Either the replica died, or it closed a kept-alive connection just as the request was sent.
    """


class InvalidResponseError(UpstreamError):
    """The replica sent something other than HTTP."""


class BrokenResponseError(UpstreamError):
    """The response began, but ended early."""
