"""Addresses of a laptop run: the gateway's, which a person chose, and those of the runtimes, which nobody did."""

from __future__ import annotations

import errno
import socket

from plimsoll_runtime.errors import UsageError

LOOPBACK = "127.0.0.1"


def listen(host: str, port: int) -> socket.socket:
    """The socket on which the gateway will answer (0 chooses a free port). Raises UsageError.

    It is opened here and handed down: a gateway that must be started again finds it open, and who waits in it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UsageError(_why(host, port, error)) from None


def _why(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use; choose another with --port, or stop what runs there "
            f"(`plimsoll down --port {port}` if it is a `plimsoll up`)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} of {host} needs more rights; choose one above 1023 with --port"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


def free_port() -> int:
    """A loopback port that is free now. Somebody may take it first: the process then dies and gets another."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def base_url(host: str, port: int) -> str:
    """How this machine reaches the gateway."""
    shown = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
