"""A parallel group's leaders and members over a simulated network, which loses, delays and duplicates messages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from plimsoll_runtime.parallel.group_messages import (
    NONCE_BYTES,
    EndGeneration,
    FromLeader,
    FromMember,
    GenerationFailed,
    Hello,
)
from plimsoll_runtime.parallel.membership import (
    Adopt,
    Close,
    Identity,
    Leader,
    LeaderAction,
    Leave,
    Lost,
    Member,
    MemberAction,
    Orders,
    Reply,
    Run,
    Send,
    Stop,
    Wait,
)

TOKEN = "a-token-of-this-group"
SETS = ("avx2", "avx512", "amx")
FACTS = {"model": "tiny", "tensor_parallel": "3", "group_size": "3", "dtype": "float32"}


def identity(index: int, token: str | None = TOKEN, sets: Sequence[str] = (), **facts: str) -> Identity:
    """Return a member of a group of three."""
    return Identity(index, 3, {**FACTS, **facts}, token, sets)


@dataclass
class SimulatedLeader:
    leader: Leader
    secret: bytes = b""
    drains: bool = False
    waits: list[int] = field(default_factory=list)
    """Connections of members that leave, of which the time is not over."""
    adopted: dict[int, int] = field(default_factory=dict)
    """Generation of each rank whose connection is used, by rank."""


@dataclass
class SimulatedMember:
    index: int
    member: Member
    connection: int | None = None
    leader: int = 0
    runs: list[int] = field(default_factory=list)
    """Generations whose ranks were started, in order."""
    alive: int = 0
    """Generation of the ranks that run now."""
    sets: Sequence[str] = ()
    instructions: str | None = None
    """Instruction set of the ranks that run now."""


@dataclass(frozen=True)
class Packet:
    """A message on a connection of a leader. `member`: its receiver; None: the leader."""

    leader: int
    connection: int
    member: int | None
    message: FromLeader | FromMember | Hello


class Network:
    """Two leaders, of which the second one may be a restarted first one, and two members."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.clock = 1000
        self.leaders = [self._new_leader(), self._new_leader()]
        self.members = [self._new_member(index) for index in (1, 2)]
        self.packets: list[Packet] = []

    def connect(self, member: int, leader: int) -> None:
        """Open a connection, if the member has none."""
        each = self.members[member]
        if each.connection is None:
            each.connection, each.leader = next(self._numbers), leader
            self._led(leader, self.leaders[leader].leader.connected(each.connection, self._nonce()))

    def break_member(self, member: int) -> None:
        """End a member's connection on its own side."""
        each = self.members[member]
        if each.connection is not None:
            leaves, each.connection = each.member.leaving, None
            self._followed(member, each.member.disconnected())
            if leaves:
                self.members[member] = self._new_member(each.index)

    def break_leader(self, member: int) -> None:
        """End a member's connection on the side of its leader."""
        each = self.members[member]
        if each.connection is not None:
            self._led(each.leader, self.leaders[each.leader].leader.closed(each.connection))

    def deliver(self, at: int) -> None:
        """Deliver one of the packets that are under way."""
        if self.packets:
            self._arrive(self.packets.pop(at % len(self.packets)))

    def duplicate(self, at: int) -> None:
        if self.packets:
            self.packets.append(self.packets[at % len(self.packets)])

    def lose(self, at: int) -> None:
        if self.packets:
            self.packets.pop(at % len(self.packets))

    def start(self, leader: int) -> None:
        """Start a generation, if the leader can."""
        each = self.leaders[leader]
        if each.leader.generation or each.leader.missing:
            return
        each.secret, each.adopted = self._nonce(), {}
        places = dict.fromkeys((1, 2), "place")
        self._led(leader, each.leader.start(Orders(each.secret, places, places, 1)))

    def leave(self, member: int) -> None:
        """Tell a member to leave. A new process replaces it after the end of its connection."""
        each = self.members[member]
        if each.member.joined:
            self._followed(member, each.member.leave())
        else:
            self.break_leader(member)
            self.break_member(member)
            self.members[member] = self._new_member(each.index)

    def release(self, leader: int) -> None:
        """Let the time of all members that leave pass."""
        each = self.leaders[leader]
        waits, each.waits = each.waits, []
        for connection in waits:
            self._led(leader, each.leader.release(connection))

    def drain(self, leader: int) -> None:
        each = self.leaders[leader]
        each.leader.drain()
        each.drains = True

    def restart(self, leader: int) -> None:
        """Replace a leader by one that knows nothing."""
        self.clock += 1
        self.leaders[leader] = self._new_leader()

    def fail(self, member: int) -> None:
        """End a rank of a member."""
        each = self.members[member]
        self._followed(member, each.member.failed(each.alive, f"a rank of member {each.index} has ended"))

    def expire(self, number: int) -> None:
        """Give up a connection that has not joined in time or has no other end, and a generation whose ranks have not
        connected in time.
        """
        each = self.members[number]
        if not each.member.joined or self.leaders[each.leader].leader.member(each.index) != each.connection:
            self.break_leader(number)
            self.break_member(number)
        leader = self.leaders[number]
        if leader.leader.generation and len(leader.adopted) < len(self.members):
            self._led(number, leader.leader.end("ranks did not connect"))

    def serving(self) -> set[int]:
        """Return the generations whose ranks are all running and used by their leader."""
        found = set()
        for each in self.leaders:
            generation = each.leader.generation
            if generation and each.adopted == {1: generation, 2: generation}:
                found.add(generation)
        return {each for each in found if all(member.alive == each for member in self.members)}

    def check(self) -> None:
        """Raise AssertionError if the group is in a state that it must not be in."""
        assert len(self.serving()) <= 1
        for member in self.members:
            assert member.runs == sorted(set(member.runs)), "an old generation was started"
            assert member.alive == member.member.generation
            assert not member.member.serves or member.alive
            assert not member.alive or member.instructions in member.sets, "a processor lacks the instructions"
        if self.serving():
            assert len({each.instructions for each in self.members}) == 1
        for leader in self.leaders:
            assert set(leader.adopted.values()) <= {leader.leader.generation}

    def heal(self, leader: int) -> None:
        """Connect all members to one leader again, and deliver everything in order."""
        for member in range(len(self.members)):
            self.break_leader(member)
            self.break_member(member)
        self.packets.clear()
        self.restart(leader)
        for member in range(len(self.members)):
            self.connect(member, leader)
        self.settle()
        self.start(leader)
        self.settle()
        self._led(leader, self.leaders[leader].leader.ready(self.leaders[leader].leader.generation))
        self.settle()

    def settle(self) -> None:
        while self.packets:
            self._arrive(self.packets.pop(0))

    def _new_member(self, index: int) -> SimulatedMember:
        """Return a member on a machine that may have another processor than the one before."""
        sets = SETS[: 1 + next(self._numbers) % len(SETS)]
        return SimulatedMember(index, Member(identity(index, sets=sets), f"host-{index}"), sets=sets)

    def _new_leader(self) -> SimulatedLeader:
        return SimulatedLeader(Leader(identity(0, sets=SETS), 3, self.clock))

    def _nonce(self) -> bytes:
        return next(self._numbers).to_bytes(NONCE_BYTES, "big")

    def _arrive(self, packet: Packet) -> None:
        leader = self.leaders[packet.leader]
        if packet.member is not None:
            each = self.members[packet.member]
            if each.connection == packet.connection:
                actions = each.member.received(packet.message, self._nonce())  # type: ignore[arg-type]
                if isinstance(packet.message, EndGeneration):
                    assert all(
                        action.generation == packet.message.generation for action in actions if isinstance(action, Stop)
                    )
                self._followed(packet.member, actions)
        elif isinstance(packet.message, Hello):
            self._greeted(leader, packet, packet.message)
        else:
            led = leader.leader.received(packet.connection, packet.message)  # type: ignore[arg-type]
            if isinstance(packet.message, GenerationFailed):
                assert all(action.generation == packet.message.generation for action in led if isinstance(action, Lost))
            self._led(packet.leader, led)

    def _greeted(self, leader: SimulatedLeader, packet: Packet, hello: Hello) -> None:
        for action in leader.leader.hello(packet.connection, hello):
            if isinstance(action, Adopt):
                assert (hello.generation, hello.secret) == (leader.leader.generation, leader.secret)
                assert action.rank not in leader.adopted
                leader.adopted[action.rank] = hello.generation

    def _led(self, leader: int, actions: Sequence[LeaderAction]) -> None:
        for action in actions:
            match action:
                case Send(connection, message):
                    owner = next((n for n, each in enumerate(self.members) if each.connection == connection), None)
                    if owner is not None:
                        self.packets.append(Packet(leader, connection, owner, message))
                case Close(connection, _):
                    for number, each in enumerate(self.members):
                        if each.connection == connection and each.leader == leader:
                            self._led(leader, self.leaders[leader].leader.closed(connection))
                            self.break_member(number)
                case Lost(_, reason):
                    assert not (self.leaders[leader].drains and reason.endswith("leaves"))
                    self.leaders[leader].adopted = {}
                case Wait(connection):
                    assert not self.leaders[leader].drains
                    self.leaders[leader].waits.append(connection)

    def _followed(self, member: int, actions: Sequence[MemberAction]) -> None:
        each = self.members[member]
        for action in actions:
            match action:
                case Reply(message) if each.connection is not None:
                    self.packets.append(Packet(each.leader, each.connection, None, message))
                case Leave():
                    self.break_leader(member)
                    self.break_member(member)
                case Stop():
                    each.alive = 0
                case Run(order):
                    each.runs.append(order.generation)
                    each.alive, each.instructions = order.generation, order.instructions
                    for rank in range(order.first, order.end):
                        hello = Hello(order.generation, rank, order.secret)
                        self.packets.append(Packet(each.leader, next(self._numbers), None, hello))
