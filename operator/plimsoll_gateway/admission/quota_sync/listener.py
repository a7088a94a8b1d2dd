"""Accepts the reports of other gateways on a separate port, protected by a secret, at a limited rate for each
gateway.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from plimsoll_gateway.admission.quota_sync.channel import Channel, WireError, accept
from plimsoll_gateway.admission.quota_sync.messages import REPORT, BadMessageError, Report, read_message
from plimsoll_gateway.admission.quota_sync.node import Node
from plimsoll_gateway.admission.quota_sync.owner import StaleReport
from plimsoll_gateway.admission.quota_sync.peer_addresses import BadAddressError, read_address

log = logging.getLogger(__name__)

PROVE_SECONDS = 2.0
IDLE_SECONDS = 30.0
REST_SECONDS = 0.02
"""Pause between two reports of one gateway. A gateway that sends more waits on its own connection and delays no
other.
"""
MOST_STRANGERS = 32
MOST_CHANNELS = 256
LOG_SECONDS = 60.0


class Listener:
    """Replies to reports. `refused` counts connections that were closed because of their content."""

    def __init__(
        self,
        node: Node,
        secrets: Callable[[], Sequence[bytes]],
        ports: frozenset[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ports`: where gateways listen. A gateway that is not in DNS yet must use one of them."""
        self._node = node
        self._secrets = secrets
        self._ports = ports
        self._clock = clock
        self._channels: dict[str, Channel] = {}
        self._connections = self._strangers = 0
        self._complained: dict[str, float] = {}
        self.refused = 0

    async def welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        if self._strangers >= MOST_STRANGERS or self._connections >= MOST_CHANNELS:
            writer.transport.abort()
            return
        self._connections += 1
        host = str(writer.get_extra_info("peername")[0])
        try:
            await self._hear(await self._let_in(reader, writer))
        except (WireError, BadMessageError, StaleReport) as error:
            self.refused += 1
            self._complain(host, error)
        except (OSError, TimeoutError):
            pass  # it disconnected, or sends nothing; our own reports show whether it is alive
        finally:
            self._connections -= 1
            writer.transport.abort()

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Channel:
        self._strangers += 1
        try:
            async with asyncio.timeout(PROVE_SECONDS):
                return await accept(reader, writer, self._secrets())
        finally:
            self._strangers -= 1

    async def _hear(self, channel: Channel) -> None:
        sender = ""
        try:
            while True:
                async with asyncio.timeout(IDLE_SECONDS):
                    report = read_message(REPORT, await channel.receive())
                if report.sender != sender:
                    self._check(report, channel, sender)
                    sender = report.sender
                    if (older := self._channels.get(sender)) is not None:
                        older.close()
                    self._channels[sender] = channel
                reply = self._node.answer(report, self._clock())
                await channel.send(msgspec.msgpack.encode(reply))
                await asyncio.sleep(REST_SECONDS)
        finally:
            if self._channels.get(sender) is channel:
                del self._channels[sender]

    def _check(self, report: Report, channel: Channel, before: str) -> None:
        """Raise WireError unless the report's sender is the address that the peer connects from, is not our own, and is
        listed in DNS or has one of the known ports.

        `before`: the other sender in earlier reports on this connection, which is an error, too; "" without one.
        """
        if before:
            raise WireError("it reported two different addresses")
        try:
            address = read_address(report.sender)
        except BadAddressError:
            raise WireError("it reported an invalid address") from None
        if report.sender != str(address) or address.host != channel.host:
            raise WireError("it reported an address other than the one it connects from")
        if report.sender == self._node.own:
            raise WireError("it reported our own address; give each gateway its own --peer-address")
        if report.sender not in self._node.membership.listed and address.port not in self._ports:
            raise WireError("it reported a port that is not in --peers")

    def _complain(self, host: str, error: Exception) -> None:
        now = self._clock()
        self._complained = {known: at for known, at in self._complained.items() if now - at < LOG_SECONDS}
        if host not in self._complained and len(self._complained) < MOST_CHANNELS:
            self._complained[host] = now
            log.warning("closed a connection of %s to the gateways' port: %s", host, error)

    def close(self) -> None:
        """Close all connections."""
        for channel in list(self._channels.values()):
            channel.close()
