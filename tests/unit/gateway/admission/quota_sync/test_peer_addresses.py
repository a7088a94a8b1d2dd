"""Addresses of gateways are normalised."""

from __future__ import annotations

import socket

import pytest

from plimsoll_gateway.admission.quota_sync.peer_addresses import (
    BadAddressError,
    PeerAddress,
    PeerAddresses,
    read_address,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("gateways.ns.svc:8082", PeerAddress("gateways.ns.svc", 8082)),
        ("10.0.0.1:1", PeerAddress("10.0.0.1", 1)),
        ("[10.0.0.1]:8082", PeerAddress("10.0.0.1", 8082)),
        ("[fd00:0:0::0:1]:8082", PeerAddress("fd00::1", 8082)),
    ],
)
def test_addresses(text: str, address: PeerAddress) -> None:
    assert read_address(text) == address
    assert read_address(str(address)) == address


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "host:0", "host:65536", "host:8e1", "fd00::1:80", "h:٣"])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(BadAddressError):
        read_address(text)


async def test_a_name_that_cannot_be_looked_up_keeps_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    known = True

    def lookup(host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
        if not known:
            raise socket.gaierror(-3, "try again")
        return [(0, 0, 0, "", (address, port)) for address in ("10.0.0.2", "10.0.0.1", "10.0.0.2")]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    names = PeerAddresses([PeerAddress("gateways", 8082)])
    found = await names.look()
    assert found == {"10.0.0.1:8082", "10.0.0.2:8082"}
    known = False
    assert await names.look() == found
