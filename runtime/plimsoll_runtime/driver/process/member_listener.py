"""The leader's end of all connections between the members of a parallel group."""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plimsoll_runtime.driver.process.network import (
    free_port,
    interface_of,
    keep_alive,
    listen,
    own_address,
    peer_text,
    url_host,
)
from plimsoll_runtime.engine.group_options import GroupOptions, split_address, split_ports
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.parallel.channel import Channel, ChannelClosed, MalformedError, Report, encoded
from plimsoll_runtime.parallel.group_messages import (
    MOST_CONTROL_BYTES,
    MOST_JOIN_BYTES,
    NONCE_BYTES,
    AskSums,
    FromLeader,
    FromMember,
    Hello,
    Join,
    Leaving,
    ShowStacks,
    Welcome,
)
from plimsoll_runtime.parallel.instruction_sets import named
from plimsoll_runtime.parallel.losses import LossError
from plimsoll_runtime.parallel.membership import (
    Adopt,
    Answered,
    Close,
    Identity,
    Leader,
    LeaderAction,
    Lost,
    Note,
    Orders,
    Send,
    Wait,
    shown,
)
from plimsoll_runtime.utils.progress import Progress

logger = logging.getLogger(__name__)

JOIN_SECONDS = 5.0
"""Time for a new connection to prove its identity."""
MOST_UNKNOWN = 16
"""Most connections at once that have not proved their identity."""
SEND_SECONDS = 1.0
"""Time for a message to a member to fit into the buffers of the connection."""
SUMS_SECONDS = 0.5
REASON_SECONDS = 0.3
"""Time for a member to say how its rank ended, after that rank's own connection has closed."""
LEAVE_SECONDS = 2.0
"""Time for this process to start to drain, after a member has announced that it leaves. If all members get a signal
together, theirs may arrive first."""
SECRET_BYTES = 32
LOG_SECONDS = 60.0
"""Time for which a refusal with the same reason is not logged again. The counter has all of them."""
MOST_LOGGED = 64
"""Refusals logged in that time."""


@dataclass(eq=False, slots=True)
class _Connection:
    """A connection of a member, or of a rank. `due`: time by which it must have proved its identity; None: it has.

    `leaves_at`: time at which a member that leaves is released; None: it does not leave.
    """

    number: int
    end: socket.socket
    channel: Channel
    is_rank: bool
    due: float | None
    peer: str
    leaves_at: float | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """A generation whose members have their orders. `address`: of this machine. `meeting`: of this machine's ranks.

    `instructions`: see `StartGeneration`.
    """

    generation: int
    address: str
    meeting: str
    instructions: str | None = None


@dataclass(slots=True)
class _Answers:
    """Answers to `AskSums` by number of the question."""

    last: int = 0
    sums: dict[int, Mapping[int, int]] = field(default_factory=dict)


class MemberListener:
    """Accepts members and their ranks in a thread, and carries out the decisions of `membership.Leader`.

    The methods may be called from any thread. The thread waits without a timeout while no new connection is unknown, so
    an idle group uses no processor time.
    """

    def __init__(self, identity: Identity, options: GroupOptions, ranks: int) -> None:
        """Listen for the members of a group of `ranks` ranks.

        Raises AddressError, and UsageError for an own address that no network interface has.
        """
        assert options.address is not None
        if options.own_address is not None:
            interface_of(options.own_address)
        _, port = split_address(options.address)
        self._options = options
        self._ranks = ranks
        self._ports: Sequence[int] = [0] if options.ports is None else split_ports(options.ports)
        self._leader = Leader(identity, ranks, int(time.time()))
        self._change = threading.Condition()
        self._numbers = itertools.count(1)
        self._connections: dict[int, _Connection] = {}
        self._channels: dict[int, Channel] = {}
        self._answers = _Answers()
        self._lost = Lost(0, "it has not started")
        self._closed = False
        self._logged: dict[tuple[str, str], float] = {}
        self.refused = 0
        with contextlib.ExitStack() as undo:
            self._control = undo.enter_context(listen("", [port], "port in --group-address"))
            self._steps = undo.enter_context(listen("", self._ports, "--group-ports"))
            self._wake, self._woken = socket.socketpair()
            undo.pop_all()
        self._selector = selectors.DefaultSelector()
        for each in (self._control, self._steps, self._woken):
            self._selector.register(each, selectors.EVENT_READ)
        if options.token is None:
            logger.warning(
                "PLIMSOLL_GROUP_TOKEN is not set: any process that reaches port %d can join this group", port
            )
        self._thread = threading.Thread(target=self._run, name="plimsoll-members", daemon=True)
        self._thread.start()

    @property
    def instruction_set(self) -> str:
        """See `GroupSet.difference`."""
        return self._leader.instructions.difference

    def begin(self, progress: Progress, num_blocks: int | None, max_model_len: int | None) -> Begun:
        """Wait until all members have joined, and order them to start the next generation.

        `num_blocks`: see `parallel.rank`. Raises EngineDeadError if this listener is closed first, AddressError if
        no port is free.
        """
        waited: list[int] | None = None
        with self._change:
            while missing := self._leader.missing:
                if missing != waited:
                    waited, size = missing, self._options.size
                    logger.info("waiting for %s", named(missing))
                    progress(f"wait for {named(missing)}", 1 - (len(missing) + 1) / size)
                self._check_open()
                self._change.wait()
            self._check_open()
            return self._begin(num_blocks, max_model_len)

    def channels(self, generation: int, seconds: float) -> dict[int, Channel]:
        """Return the channels of all remote ranks of a generation, by rank, when they have connected.

        Raises EngineDeadError if the generation ends, or after `seconds`.
        """
        expected = range(self._ranks // self._options.size, self._ranks)
        with self._change:
            self._change.wait_for(
                lambda: self._leader.generation != generation or len(self._channels) == len(expected), seconds
            )
            if self._leader.generation != generation:
                raise self._loss()
            if missing := [rank for rank in expected if rank not in self._channels]:
                numbers = ", ".join(map(str, missing))
                raise EngineDeadError(f"the ranks {numbers} did not connect to member 0 within {seconds:.0f} s")
            return dict(self._channels)

    def ready(self, generation: int) -> None:
        """Tell the members that all ranks of a generation can run steps."""
        with self._change:
            self._perform(self._leader.ready(generation))

    def end(self, generation: int, reason: str) -> None:
        """End a generation on all members, if it has not ended."""
        with self._change:
            if self._leader.generation == generation:
                self._perform(self._leader.end(reason))

    def drain(self) -> None:
        """Keep all members until `close`, also those that leave."""
        with self._change:
            self._leader.drain()

    def loss(self, generation: int) -> LossError | None:
        """Return the error for a generation that has ended; None if it has not, after a short wait for that."""
        with self._change:
            ended = self._change.wait_for(lambda: self._leader.generation != generation, REASON_SECONDS)
            return self._loss() if ended else None

    def sums(self, member: int, generation: int) -> Mapping[int, int] | None:
        """Return how many sums each rank of a member has begun; None if the member does not answer in time."""
        answers = self._answers
        with self._change:
            answers.last += 1
            question = answers.last
            self._send_to(member, AskSums(generation, question))
            self._change.wait_for(lambda: question in answers.sums, SUMS_SECONDS)
            return answers.sums.pop(question, None)

    def show_stacks(self, member: int, generation: int, rank: int) -> None:
        """Make a rank of a member write the stacks of its threads to its log."""
        with self._change:
            self._send_to(member, ShowStacks(generation, rank))

    def close(self) -> None:
        """Close all connections. May be called again."""
        with self._change:
            if self._closed:
                return
            self._perform(self._leader.end("the leader has ended"))
            self._closed = True
            self._change.notify_all()
        self._wake.send(b"\0")
        self._thread.join()

    def _begin(self, num_blocks: int | None, max_model_len: int | None) -> Begun:
        hosts = {}
        for index in range(1, self._options.size):
            number = self._leader.member(index)
            assert number is not None
            hosts[index] = self._options.own_address or own_address(self._connections[number].end)
        port = free_port(self._ports)
        meetings = {index: f"tcp://{url_host(host)}:{port}" for index, host in hosts.items()}
        steps_port = int(self._steps.getsockname()[1])
        secret = secrets.token_bytes(SECRET_BYTES)
        for channel in self._channels.values():
            channel.close()
        self._channels = {}
        self._perform(self._leader.start(Orders(secret, meetings, hosts, steps_port, num_blocks, max_model_len)))
        logger.info("generation %d of the ranks starts on all %d members", self._leader.generation, self._options.size)
        return Begun(self._leader.generation, hosts[1], meetings[1], self._leader.instructions.name)

    def _loss(self) -> LossError:
        return LossError(self._lost.reason, self._lost.cause)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineDeadError("the engine has ended")

    def _run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(self._patience()):
                with self._change:
                    self._handle(key.fileobj, key.data)
            with self._change:
                self._expire()
        for connection in list(self._connections.values()):
            self._forget(connection)
        for channel in self._channels.values():
            channel.close()
        for each in (self._control, self._steps, self._wake, self._woken):
            each.close()
        self._selector.close()

    def _patience(self) -> float | None:
        with self._change:
            times = [time for each in self._connections.values() for time in (each.due, each.leaves_at)]
            due = min((time for time in times if time is not None), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def _expire(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections.values()):
            if connection.due is not None and connection.due <= now:
                self._refuse(connection, f"it did not prove its identity within {JOIN_SECONDS:g} s")
            elif connection.leaves_at is not None and connection.leaves_at <= now:
                connection.leaves_at = None
                self._perform(self._leader.release(connection.number))

    def _handle(self, source: object, connection: _Connection | None) -> None:
        if connection is not None:
            if connection.number in self._connections:
                self._read(connection)
        elif source is self._control or source is self._steps:
            self._accept(source, is_rank=source is self._steps)

    def _accept(self, listener: socket.socket, *, is_rank: bool) -> None:
        try:
            end, _ = listener.accept()
        except OSError as error:
            logger.warning("a connection of a member could not be accepted: %s", error)
            return
        end.settimeout(SEND_SECONDS)
        received, most = (Hello, MOST_JOIN_BYTES) if is_rank else (FromMember, MOST_JOIN_BYTES)
        due = time.monotonic() + JOIN_SECONDS
        channel = Channel(end, received, most)
        connection = _Connection(next(self._numbers), end, channel, is_rank, due, peer_text(end))
        self._connections[connection.number] = connection
        self._selector.register(end, selectors.EVENT_READ, connection)
        if sum(each.due is not None for each in self._connections.values()) > MOST_UNKNOWN:
            self._refuse(connection, f"{MOST_UNKNOWN} other connections have not proved their identity yet")
            return
        try:
            keep_alive(end)
        except OSError as error:
            self._refuse(connection, str(error))
            return
        if not is_rank:
            self._perform(self._leader.connected(connection.number, secrets.token_bytes(NONCE_BYTES)))

    def _read(self, connection: _Connection) -> None:
        number, channel = connection.number, connection.channel
        try:
            channel.read()
            while number in self._connections and channel.has_message:
                self._take(connection, channel.receive())
        except MalformedError as error:
            self._refuse(connection, f"it sent no message of a member: {error}")
        except ChannelClosed:
            self._refuse(connection, "it ended before it proved its identity" if connection.due is not None else "")

    def _take(self, connection: _Connection, message: FromMember | Hello) -> None:
        if isinstance(message, Hello):
            self._perform(self._leader.hello(connection.number, message))
            return
        self._perform(self._leader.received(connection.number, message))
        if isinstance(message, Leaving):
            logger.info("the member at %s leaves", connection.peer)
        if isinstance(message, Join) and self._leader.member(message.index) == connection.number:
            logger.info("member %d (%s) has joined from %s", message.index, shown(message.host), connection.peer)

    def _perform(self, actions: Sequence[LeaderAction]) -> None:
        for action in actions:
            match action:
                case Send(number, message):
                    self._send(self._connections[number], message)
                case Close(number, reason):
                    self._refuse(self._connections[number], reason)
                case Adopt(number, rank):
                    self._adopt(self._connections[number], rank)
                case Wait(number):
                    self._connections[number].leaves_at = time.monotonic() + LEAVE_SECONDS
                case Answered(question, sums):
                    self._answers.sums[question] = sums
                case Note(text):
                    logger.info("%s", text)
                case Lost():
                    self._lost = action
                    for channel in self._channels.values():
                        channel.shut_down()
                case _:
                    logger.error("%s", action.message)
        self._change.notify_all()

    def _send_to(self, member: int, message: FromLeader) -> None:
        number = self._leader.member(member)
        if number is not None:
            self._send(self._connections[number], message)

    def _send(self, connection: _Connection, message: FromLeader) -> None:
        """Send a message. A connection that does not take it is shut down, and its end noticed by the thread."""
        if isinstance(message, Welcome):
            connection.due = None
            connection.channel.expect(FromMember, MOST_CONTROL_BYTES)
        try:
            connection.channel.send(encoded(message))
        except ChannelClosed:
            connection.channel.shut_down()

    def _adopt(self, connection: _Connection, rank: int) -> None:
        self._selector.unregister(connection.end)
        del self._connections[connection.number]
        connection.end.settimeout(None)
        connection.channel.expect(Report)
        self._channels[rank] = connection.channel

    def _refuse(self, connection: _Connection, reason: str) -> None:
        """Close a connection. With a `reason`, count and log it."""
        if reason:
            self.refused += 1
            self._log_refusal(connection, reason)
        self._forget(connection)
        self._perform(self._leader.closed(connection.number))

    def _log_refusal(self, connection: _Connection, reason: str) -> None:
        """Log a refusal, unless that of the same machine for the same reason was logged in the last minute."""
        now, refusal = time.monotonic(), (connection.peer.rpartition(":")[0], reason)
        if now < self._logged.get(refusal, -LOG_SECONDS) + LOG_SECONDS:
            return
        self._logged = {each: at for each, at in self._logged.items() if now < at + LOG_SECONDS} | {refusal: now}
        if len(self._logged) <= MOST_LOGGED:
            logger.warning("refused connection %d, from %s: %s", self.refused, connection.peer, reason)

    def _forget(self, connection: _Connection) -> None:
        self._selector.unregister(connection.end)
        del self._connections[connection.number]
        connection.channel.close()
