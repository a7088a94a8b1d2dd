"""TCP between the members of a parallel group: listening, connecting, liveness, and network interfaces."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

import psutil

from plimsoll_runtime.errors import AddressError, UsageError

SILENT_SECONDS = 10
"""A connection is broken if the other machine acknowledges nothing for this long."""
PROBE_AFTER_SECONDS = 4
PROBE_SECONDS = 2
PROBES = 3
BACKLOG = 64


def keep_alive(end: socket.socket) -> None:
    """Send without delay, and let the kernel notice a machine that is gone: it probes idle connections, so that no
    process has to.
    """
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_SECONDS)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_SECONDS * 1000)


def connect(host: str, port: int, seconds: float) -> socket.socket:
    """Connect, with `seconds` as the timeout of all operations. Raises OSError."""
    end = socket.create_connection((host, port), timeout=seconds)
    keep_alive(end)
    return end


def listen(host: str, ports: Iterable[int], options: str) -> socket.socket:
    """Listen on the first free port of all interfaces, or of that with the IP address `host`.

    `options`: the flags that choose the ports. Raises AddressError.
    """
    problem: OSError | None = None
    ports = list(ports)
    for port in ports:
        try:
            return _listen(host, port)
        except OSError as error:
            problem = error
    where = f"{ports[0]}" if len(ports) == 1 else f"any port from {ports[0]} to {ports[-1]}"
    raise AddressError(f"cannot listen on {where} ({problem}); choose another {options}") from problem


def free_port(ports: Iterable[int]) -> int:
    """Return a port that no process listens on at the moment. Raises AddressError."""
    with listen("", ports, "--group-ports") as found:
        return int(found.getsockname()[1])


def interface_of(address: str) -> str:
    """Return the network interface that has an IP address. Raises UsageError."""
    wanted, others = ipaddress.ip_address(address), list[str]()
    for interface, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            plain = each.address.partition("%")[0]
            if ipaddress.ip_address(plain) == wanted:
                return interface
            others.append(plain)
    raise UsageError(
        f"no network interface has the address {address}, only {', '.join(others)}; give one of them with "
        "--group-own-address"
    )


def own_address(end: socket.socket) -> str:
    """Return the IP address of this end of a connection."""
    found = ipaddress.ip_address(str(end.getsockname()[0]).partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def peer_text(end: socket.socket) -> str:
    """Return address and port of the other end."""
    try:
        host, port = end.getpeername()[:2]
    except OSError:
        return "an address that is gone"
    return f"{host}:{port}"


def url_host(address: str) -> str:
    """Return an address as it is written in a URL."""
    return f"[{address}]" if ":" in address else address


def _listen(host: str, port: int) -> socket.socket:
    if host or not socket.has_dualstack_ipv6():
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
