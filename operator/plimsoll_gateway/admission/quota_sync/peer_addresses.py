"""Where the other gateways are: names with a port each, of which every address is one gateway's."""

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
    """A host, by name or address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class BadAddressError(ValueError):
    """A text is no address; the message says how one is written."""


def read_address(text: str) -> PeerAddress:
    """`HOST:PORT`, or `[ADDRESS]:PORT`; addresses in one form, however they are written. Raises BadAddressError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 1 <= int(port[:6]) <= 65535 or len(port) > 5:
        raise BadAddressError(f"{text[:64]!r} is not HOST:PORT with a port from 1 to 65535")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not host or (":" in host and not bracketed):
        raise BadAddressError(f"{text[:64]!r} has no host; an IPv6 address is written [ADDRESS]:PORT")
    return PeerAddress(_plain(host), int(port))


def _plain(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


class PeerAddresses:
    """Finds the addresses behind some names. A name that cannot be looked up just now keeps those it had."""

    def __init__(self, addresses: Sequence[PeerAddress]) -> None:
        self._found: dict[PeerAddress, frozenset[str]] = {address: frozenset() for address in addresses}
        self._failed: set[PeerAddress] = set()

    @property
    def ports(self) -> frozenset[int]:
        """Those at which gateways listen."""
        return frozenset(address.port for address in self._found)

    async def look(self) -> frozenset[str]:
        """The addresses, with their ports, of all names."""
        for address in self._found:
            try:
                found = await asyncio.get_running_loop().getaddrinfo(
                    address.host, address.port, type=socket.SOCK_STREAM
                )
            except OSError as error:
                if address not in self._failed:
                    log.error("the gateways of %s cannot be looked up: %s; going on with those known", address, error)
                self._failed.add(address)
                continue
            self._failed.discard(address)
            self._found[address] = frozenset(str(PeerAddress(_plain(str(info[4][0])), address.port)) for info in found)
        return frozenset().union(*self._found.values())
