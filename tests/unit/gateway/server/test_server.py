"""The server's sockets. Nagle's algorithm must be off: otherwise responses wait 40 ms for an acknowledgement."""

from __future__ import annotations

import socket
from types import SimpleNamespace

from plimsoll_gateway.discovery.routing_table import TableStore
from plimsoll_gateway.server.connection_guard import ConnectionGuard
from plimsoll_gateway.server.connection_limit import ConnectionLimit
from plimsoll_gateway.server.server import GatewayServer, StopTimes, listen
from plimsoll_gateway.telemetry.metrics import Metrics


def test_what_is_accepted_is_known_to_be_tcp() -> None:
    with listen("127.0.0.1", 0) as server, socket.create_connection(server.getsockname()):
        accepted, _ = server.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP  # asyncio's condition for disabling it


def test_the_server_has_an_end_to_its_patience_and_counts_its_connections() -> None:
    connections = ConnectionLimit(1, Metrics(TableStore()))
    app = SimpleNamespace(connection_limit=connections)
    protocol = GatewayServer(app, StopTimes(0, 0)).config.http  # type: ignore[arg-type]
    assert isinstance(protocol, type)
    assert issubclass(protocol, ConnectionGuard)
    assert protocol.limit is connections
