"""Addresses of the other gateways: host names with ports, each of whose addresses belongs to one gateway."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A host name or IP address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class BadAddressError(ValueError):
    """A text is not an address; the message has the expected form."""


def read_address(text: str) -> PeerAddress:
    """Parse `HOST:PORT` or `[ADDRESS]:PORT`; IP addresses are normalised. Raises BadAddressError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 1 <= int(port[:6]) <= 65535 or len(port) > 5:
        raise BadAddressError(f"{text[:64]!r} is not HOST:PORT with a port from 1 to 65535")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not host or (":" in host and not bracketed):
        raise BadAddressError(f"{text[:64]!r} has no host; write an IPv6 address as [ADDRESS]:PORT")
    return PeerAddress(_plain(host), int(port))


def _plain(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


class PeerAddresses:
    """Resolves host names. A name that cannot be resolved keeps its last addresses."""

    def __init__(self, addresses: Sequence[PeerAddress]) -> None:
        self._found: dict[PeerAddress, frozenset[str]] = {address: frozenset() for address in addresses}
        self._failed: set[PeerAddress] = set()

    @property
    def ports(self) -> frozenset[int]:
        """The ports at which gateways listen."""
        return frozenset(address.port for address in self._found)

    async def look(self) -> frozenset[str]:
        """Resolve all names and return the gateways' addresses as `IP:PORT` or `[IP]:PORT`."""
        for address in self._found:
            try:
                found = await asyncio.get_running_loop().getaddrinfo(
                    address.host, address.port, type=socket.SOCK_STREAM
                )
            except OSError as error:
                if address not in self._failed:
                    log.error("cannot resolve the gateways of %s: %s; continuing with the known ones", address, error)
                self._failed.add(address)
                continue
            self._failed.discard(address)
            self._found[address] = frozenset(str(PeerAddress(_plain(str(info[4][0])), address.port)) for info in found)
        return frozenset().union(*self._found.values())
