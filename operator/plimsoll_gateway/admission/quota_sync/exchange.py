"""The exchange of reports and replies with all other gateways."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence

import msgspec

from plimsoll_gateway.admission.quota_sync.channel import Channel, WireError, dial
from plimsoll_gateway.admission.quota_sync.listener import Listener
from plimsoll_gateway.admission.quota_sync.messages import REPLY, BadMessageError, read_message
from plimsoll_gateway.admission.quota_sync.node import TURN_SECONDS, Node
from plimsoll_gateway.admission.quota_sync.peer_addresses import PeerAddress, PeerAddresses, read_address

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
CONNECT_SECONDS = 2.0
GIVE_UP_SECONDS = 3.0
"""If a reply takes longer, the connection is closed and opened again."""
HURRY_SECONDS = 0.05
"""The shortest time between two reports to one gateway, if a request was refused or an amount was given back."""

FAILURES = (OSError, TimeoutError, WireError, BadMessageError)


class Exchange:
    """Sends the reports of a node to all other gateways, and replies to theirs through `listener`.

    `joined` is set when the node knows its shares.
    """

    def __init__(
        self,
        node: Node,
        instance: str,
        addresses: Sequence[PeerAddress],
        secrets: Callable[[], Sequence[bytes]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._instance = instance
        self._names = PeerAddresses(addresses)
        self._secrets = secrets
        self._clock = clock
        self._talks: dict[str, Talk] = {}
        self.listener = Listener(node, secrets, self._names.ports, clock)
        self.joined = asyncio.Event()
        node.hurry = self._hurry

    async def run(self, sock: socket.socket) -> None:
        """Exchange reports until cancelled; closes the socket at the end."""
        server = await asyncio.start_server(self.listener.welcome, sock=sock)
        try:
            await self.keep_up()
        finally:
            server.close()
            self.listener.close()
            for talk in self._talks.values():
                talk.end()

    async def keep_up(self) -> None:
        """Look up other gateways, and run the node's periodic work, until cancelled.

        The periodic work starts after the first lookup; before it, the node would consider itself alone. Later lookups
        run in a separate task, so that a slow name server does not delay the work.
        """
        await self._look()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_again())
            tasks.create_task(self._turns())

    async def _look(self) -> None:
        self._node.list(await self._names.look(), self._clock())

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look()

    async def _turns(self) -> None:
        while True:
            self._turn()
            await asyncio.sleep(TURN_SECONDS)

    def _turn(self) -> None:
        self._node.turn(self._clock())
        others = set(self._node.membership.members) - {self._node.own}
        for peer in others - self._talks.keys():
            self._talks[peer] = Talk(self._node, self._instance, peer, self._secrets, self._clock)
        for peer in self._talks.keys() - others:
            self._talks.pop(peer).end()
        if self._node.joined:
            self.joined.set()

    def _hurry(self, peer: str) -> None:
        talk = self._talks.get(peer)
        if talk is not None:
            talk.hurry()


class Talk:
    """Sends reports to one gateway, one at a time, over a connection that is reopened after errors."""

    def __init__(
        self,
        node: Node,
        instance: str,
        peer: str,
        secrets: Callable[[], Sequence[bytes]],
        clock: Callable[[], float],
    ) -> None:
        self._node = node
        self._instance = instance
        self._peer = peer
        self._secrets = secrets
        self._clock = clock
        self._wanted = asyncio.Event()
        self._failed = ""
        self._task = asyncio.create_task(self._run())

    def hurry(self) -> None:
        """Send the next report soon."""
        self._wanted.set()

    def end(self) -> None:
        """Stop sending reports."""
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await self._connection()
            except FAILURES as error:
                self._tell(str(error) or type(error).__name__)
            finally:
                self._node.failed(self._peer)
            await asyncio.sleep(TURN_SECONDS)

    async def _connection(self) -> None:
        address = read_address(self._peer)
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                channel = await dial(reader, writer, self._secrets()[0])
            while True:
                await self._report(channel)
                await self._rest()
        finally:
            writer.transport.abort()

    async def _report(self, channel: Channel) -> None:
        self._wanted.clear()
        async with asyncio.timeout(GIVE_UP_SECONDS):
            await channel.send(msgspec.msgpack.encode(self._node.report(self._peer, self._clock())))
            reply = read_message(REPLY, await channel.receive())
        if reply.instance == self._instance:
            raise WireError("it is this gateway itself; set --peer-address to the address that --peers resolves to")
        if not self._node.accepts(self._peer, reply):
            raise WireError("its reply does not match our last report")
        self._node.accept(self._peer, reply, self._clock())
        if self._failed:
            log.info("the gateway at %s responds", self._peer)
            self._failed = ""

    async def _rest(self) -> None:
        await asyncio.sleep(HURRY_SECONDS)
        try:
            async with asyncio.timeout(TURN_SECONDS - HURRY_SECONDS):
                await self._wanted.wait()
        except TimeoutError:
            return

    def _tell(self, why: str) -> None:
        if why != self._failed:
            log.warning("cannot share limits with the gateway at %s: %s", self._peer, why)
        self._failed = why
