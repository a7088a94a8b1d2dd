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
class Place:
    """A host, by name or address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class BadPlaceError(ValueError):
    """A text is no place; the message says how one is written."""


def read_place(text: str) -> Place:
    """`HOST:PORT`, or `[ADDRESS]:PORT`; addresses in one form, however they are written. Raises BadPlaceError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 1 <= int(port[:6]) <= 65535 or len(port) > 5:
        raise BadPlaceError(f"{text[:64]!r} is not HOST:PORT with a port from 1 to 65535")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not host or (":" in host and not bracketed):
        raise BadPlaceError(f"{text[:64]!r} has no host; an IPv6 address is written [ADDRESS]:PORT")
    return Place(_plain(host), int(port))


def _plain(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


class Names:
    """Finds the addresses behind some names. A name that cannot be looked up just now keeps those it had."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._found: dict[Place, frozenset[str]] = {place: frozenset() for place in places}
        self._failed: set[Place] = set()

    @property
    def ports(self) -> frozenset[int]:
        """Those at which gateways listen."""
        return frozenset(place.port for place in self._found)

    async def look(self) -> frozenset[str]:
        """The addresses, with their ports, of all names."""
        for place in self._found:
            try:
                found = await asyncio.get_running_loop().getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
            except OSError as error:
                if place not in self._failed:
                    log.error("the gateways of %s cannot be looked up: %s; going on with those known", place, error)
                self._failed.add(place)
                continue
            self._failed.discard(place)
            self._found[place] = frozenset(str(Place(_plain(str(info[4][0])), place.port)) for info in found)
        return frozenset().union(*self._found.values())
