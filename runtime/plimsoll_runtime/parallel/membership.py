"""The decisions of a parallel group's protocol, without sockets, clocks and processes: records in, actions out.

The leader lets members join and starts generations of ranks, one at a time. A generation needs all members, and ends as
a whole. Its number is larger than that of any before, also of a leader that was restarted, so that a member can refuse
everything that is old.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll_runtime.parallel.group_messages import (
    NONCE_BYTES,
    AskSums,
    Challenge,
    EndGeneration,
    FromLeader,
    FromMember,
    GenerationFailed,
    GenerationReady,
    Hello,
    Join,
    Leaving,
    Refused,
    ShowStacks,
    StartGeneration,
    Sums,
    Welcome,
)
from plimsoll_runtime.parallel.instruction_sets import GroupSet, Sets, group_set
from plimsoll_runtime.parallel.losses import LossCause
from plimsoll_runtime.parallel.proofs import LEADER, is_proof, member_role, proof

MOST_REPORTS = 64
"""Refusals that are remembered, so that each is reported once."""
LONGEST_TEXT = 500
"""Characters of another member's text that a message shows."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A member: its index in a group of `size` members, and the facts that must be the same for all members.

    `instructions` may differ.
    """

    index: int
    size: int
    facts: Mapping[str, str]
    token: str | None
    instructions: Sets = ()

    @property
    def group(self) -> str:
        """The group's id: a digest of the model's name and of the numbers of ranks and members."""
        named = [self.facts.get(name, "") for name in ("model", "tensor_parallel", "pipeline_parallel", "group_size")]
        return hashlib.sha256("\0".join(named).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message on a connection."""

    connection: int
    message: FromLeader


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection that is not accepted."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """Log a member that was refused, with the reason."""

    message: str


@dataclass(frozen=True, slots=True)
class Note:
    """Log a change of the group's instruction set."""

    message: str


@dataclass(frozen=True, slots=True)
class Lost:
    """End the leader's own ranks of a generation, which has ended."""

    generation: int
    reason: str
    cause: LossCause = LossCause.OTHER


@dataclass(frozen=True, slots=True)
class Adopt:
    """Use a connection for the steps of a rank."""

    connection: int
    rank: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A member has answered `AskSums` number `question`, with the sums by rank."""

    question: int
    sums: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Wait:
    """Call `Leader.release` for a member that leaves, after the time in which the leader may start to drain."""

    connection: int


LeaderAction = Send | Close | Report | Note | Lost | Adopt | Answered | Wait


@dataclass(frozen=True, slots=True)
class Orders:
    """What `Leader.start` sends to each member: the fields of `StartGeneration` that depend on sockets."""

    secret: bytes
    meetings: Mapping[int, str]
    hosts: Mapping[int, str]
    port: int
    num_blocks: int | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class _Joined:
    index: int
    host: str
    instructions: Sets


class Leader:
    """The leader's side: connections that may join, members, and the present generation (0: there is none)."""

    def __init__(self, identity: Identity, ranks: int, first_generation: int) -> None:
        """`first_generation`: the least number of a generation, such as the seconds of the wall clock."""
        self._identity = identity
        self._ranks = ranks
        self._next = max(1, first_generation)
        self._nonces: dict[int, bytes] = {}
        self._members: dict[int, _Joined] = {}
        self._reported: set[str] = set()
        self._secret = b""
        self._adopted: set[int] = set()
        self._leaving: set[int] = set()
        self._is_draining = False
        self.generation = 0
        self.instructions = GroupSet()
        """Of the generation that was started last."""

    @property
    def missing(self) -> list[int]:
        """The indexes of members that have not joined."""
        present = {member.index for member in self._members.values()}
        return [index for index in range(1, self._identity.size) if index not in present]

    def member(self, index: int) -> int | None:
        """Return the connection of a member, or None."""
        return next((each for each, member in self._members.items() if member.index == index), None)

    def connected(self, connection: int, nonce: bytes) -> list[LeaderAction]:
        """Challenge a new connection."""
        self._nonces[connection] = nonce
        return [Send(connection, Challenge(nonce))]

    def received(self, connection: int, message: FromMember) -> list[LeaderAction]:
        """Return the actions for a member's message."""
        if isinstance(message, Join):
            return self._join(connection, message)
        member = self._members.get(connection)
        if member is None:
            return self._reject(connection, "it sent a message before it joined")
        if isinstance(message, Leaving):
            return self._leaves(connection)
        if message.generation != self.generation or not self.generation:
            return []
        if isinstance(message, Sums):
            return [Answered(message.question, message.sums)]
        return self.end(f"member {member.index}: {shown(message.message)}", LossCause.RANK_ENDED)

    def closed(self, connection: int) -> list[LeaderAction]:
        """Forget a connection. If it was a member's, the generation ends."""
        self._nonces.pop(connection, None)
        self._leaving.discard(connection)
        member = self._members.pop(connection, None)
        if member is None:
            return []
        return self.end(f"the connection to member {member.index} was lost", LossCause.MEMBER_LOST)

    def drain(self) -> None:
        """Keep all members, also those that leave, until this leader closes their connections."""
        self._is_draining = True

    def release(self, connection: int) -> list[LeaderAction]:
        """End the generation and let a member go that leaves, unless this leader drains."""
        if self._is_draining or connection not in self._leaving:
            return []
        ended = self.end(f"member {self._members[connection].index} leaves", LossCause.MEMBER_LEFT)
        return [*ended, Close(connection, ""), *self.closed(connection)]

    def start(self, orders: Orders) -> list[LeaderAction]:
        """Start a generation, whose number `generation` then is. There must be none, and no member may be missing."""
        if self.generation or self.missing:
            raise ValueError(f"generation {self.generation} runs, or members {self.missing} are missing")
        self.generation, self._next = self._next, self._next + 1
        self._secret, self._adopted = orders.secret, set()
        notes = self._choose_instructions()
        return [*notes, *(Send(each, self._order(member.index, orders)) for each, member in self._members.items())]

    def end(self, reason: str, cause: LossCause = LossCause.OTHER) -> list[LeaderAction]:
        """End the present generation, if there is one."""
        if not self.generation:
            return []
        ended, self.generation, self._secret = self.generation, 0, b""
        return [*(Send(each, EndGeneration(ended)) for each in self._members), Lost(ended, reason, cause)]

    def ready(self, generation: int) -> list[LeaderAction]:
        """Tell the members that all ranks of a generation can run steps."""
        if generation != self.generation:
            return []
        return [Send(each, GenerationReady(generation)) for each in self._members]

    def hello(self, connection: int, message: Hello) -> list[LeaderAction]:
        """Return the actions for a rank's connection."""
        if not self.generation or message.generation != self.generation:
            return [Close(connection, f"its generation is {message.generation}, but {self.generation} runs")]
        if not hmac.compare_digest(message.secret, self._secret):
            return [Close(connection, "it does not know the generation's secret")]
        own = self._ranks // self._identity.size
        if not own <= message.rank < self._ranks or message.rank in self._adopted:
            return [Close(connection, f"rank {message.rank} is not expected")]
        self._adopted.add(message.rank)
        return [Adopt(connection, message.rank)]

    def _join(self, connection: int, join: Join) -> list[LeaderAction]:
        nonce = self._nonces.pop(connection, None)
        if nonce is None:
            return self._reject(connection, "it joined twice")
        identity = self._identity
        if len(join.nonce) != NONCE_BYTES:
            return [Close(connection, f"its nonce has {len(join.nonce)} bytes, not {NONCE_BYTES}")]
        if not is_proof(join.proof, identity.token, member_role(join.group, join.index), nonce, join.nonce):
            return [Close(connection, "its proof is wrong: it lacks the token of this group")]
        own = proof(identity.token, LEADER, nonce, join.nonce)
        if (refusal := self._refusal(join)) is not None:
            message, final = refusal
            reports = [] if message in self._reported else [Report(message)]
            self._reported = {message, *self._reported} if len(self._reported) < MOST_REPORTS else {message}
            return [*reports, Send(connection, Refused(own, message, final)), Close(connection, "")]
        self._members[connection] = _Joined(join.index, shown(join.host), [shown(each) for each in join.instructions])
        self._next = max(self._next, join.generation + 1)
        return [Send(connection, Welcome(own))]

    def _refusal(self, join: Join) -> tuple[str, bool] | None:
        """Return why a member cannot join, and whether that is final; None if it can."""
        size = self._identity.size
        name = f"member {join.index} ({shown(join.host)})"
        if (found := mismatch(self._identity.facts, join.facts)) is not None:
            field, own, other = found
            return f"{name} has {field} {other}, but member 0 has {own}; start both with the same", True
        if join.group != self._identity.group:
            return f"{name} is of group {shown(join.group)}, but this is group {self._identity.group}", True
        if not 0 < join.index < size:
            return f"{name} is beyond the group, whose members are 0 to {size - 1}; correct --group-index", True
        held = next((each for each in self._members.values() if each.index == join.index), None)
        if held is not None:
            return (
                f"member {join.index} is {held.host} already, so {shown(join.host)} cannot be; give each "
                "member its own --group-index"
            ), False
        return None

    def _choose_instructions(self) -> list[LeaderAction]:
        """Choose the instruction set of the next generation. Note it if members differ, or no longer do."""
        members = {member.index: member.instructions for member in self._members.values()}
        before, self.instructions = self.instructions, group_set({0: self._identity.instructions, **members})
        if self.instructions.difference == before.difference:
            return []
        return [Note(str(self.instructions))]

    def _leaves(self, connection: int) -> list[LeaderAction]:
        if self._is_draining or connection in self._leaving:
            return []
        self._leaving.add(connection)
        return [Wait(connection)]

    def _reject(self, connection: int, reason: str) -> list[LeaderAction]:
        return [Close(connection, reason), *self.closed(connection)]

    def _order(self, index: int, orders: Orders) -> StartGeneration:
        share = self._ranks // self._identity.size
        return StartGeneration(
            generation=self.generation,
            secret=orders.secret,
            first=index * share,
            end=(index + 1) * share,
            size=self._ranks,
            meeting=orders.meetings[index],
            host=orders.hosts[index],
            port=orders.port,
            num_blocks=orders.num_blocks,
            max_model_len=orders.max_model_len,
            instructions=self.instructions.name,
        )


def mismatch(own: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return the first field in which two members differ, and both values; None if they agree."""
    for field in (*own, *(name for name in other if name not in own)):
        mine, theirs = own.get(field, "nothing"), other.get(field, "nothing")
        if mine != theirs:
            return shown(field), shown(mine), shown(theirs)
    return None


@dataclass(frozen=True, slots=True)
class Reply:
    """Send a message to the leader."""

    message: FromMember


@dataclass(frozen=True, slots=True)
class Run:
    """Start the ranks of a generation."""

    order: StartGeneration


@dataclass(frozen=True, slots=True)
class Stop:
    """Kill the ranks of a generation and wait for their end. `served`: whether it became ready before."""

    generation: int
    served: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer `AskSums`."""

    question: AskSums


@dataclass(frozen=True, slots=True)
class Show:
    """Make a rank write its stacks."""

    rank: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Close the connection. `final`: the member cannot join this group."""

    reason: str
    final: bool = False


MemberAction = Reply | Run | Stop | Answer | Show | Leave


class Member:
    """A member's side: whether it has joined, and the generation of its ranks (0: there is none)."""

    def __init__(self, identity: Identity, host: str) -> None:
        """`host`: name of this machine, for messages."""
        self._identity = identity
        self._host = host
        self._nonces: tuple[bytes, bytes] | None = None
        self._largest = 0
        self.joined = False
        self.leaving = False
        self.generation = 0
        self.serves = False

    def leave(self) -> list[MemberAction]:
        """Announce that this member leaves. It may go at once if it has not joined, and otherwise when the connection
        ends.
        """
        if not self.joined:
            return [Leave("this member ends")]
        if self.leaving:
            return []
        self.leaving = True
        return [Reply(Leaving())]

    def received(self, message: FromLeader, nonce: bytes) -> list[MemberAction]:
        """Return the actions for a message of the leader. `nonce`: a fresh one, for a `Challenge`."""
        match message:
            case Challenge():
                return self._challenged(message, nonce)
            case Welcome() | Refused():
                return self._answered(message)
            case _ if not self.joined:
                return [Leave("the leader sent an order before this member joined")]
            case StartGeneration():
                return self._started(message)
            case GenerationReady():
                self.serves = self.serves or message.generation == self.generation != 0
            case EndGeneration():
                if message.generation == self.generation:
                    return self._stopped()
            case AskSums():
                return [Answer(message)] if message.generation == self.generation != 0 else []
            case ShowStacks():
                return [Show(message.rank)] if message.generation == self.generation != 0 else []
        return []

    def failed(self, generation: int, message: str) -> list[MemberAction]:
        """End a generation, of which a rank has ended."""
        if generation != self.generation or not generation:
            return []
        return [*self._stopped(), Reply(GenerationFailed(generation, message))]

    def disconnected(self) -> list[MemberAction]:
        """End the generation, because the connection to the leader was lost."""
        self.joined, self._nonces = False, None
        self.leaving = False
        return self._stopped()

    def _challenged(self, message: Challenge, nonce: bytes) -> list[MemberAction]:
        if self._nonces is not None or len(message.nonce) != NONCE_BYTES:
            return [Leave("the leader sent a wrong challenge")]
        identity = self._identity
        self._nonces = message.nonce, nonce
        role = member_role(identity.group, identity.index)
        made = proof(identity.token, role, message.nonce, nonce)
        named = (identity.group, identity.index, identity.facts, self._host)
        return [Reply(Join(*named, nonce, made, self._largest, identity.instructions))]

    def _answered(self, message: Welcome | Refused) -> list[MemberAction]:
        if self._nonces is None or self.joined:
            return [Leave("the leader sent an answer without a question")]
        if not is_proof(message.proof, self._identity.token, LEADER, *self._nonces):
            return [Leave("the leader's proof is wrong: it lacks the token of this group (PLIMSOLL_GROUP_TOKEN)")]
        if isinstance(message, Refused):
            return [Leave(message.message, message.final)]
        self.joined = True
        return []

    def _started(self, order: StartGeneration) -> list[MemberAction]:
        if order.generation <= self._largest:
            return []
        actions = self._stopped()
        self._largest = self.generation = order.generation
        return [*actions, Run(order)]

    def _stopped(self) -> list[MemberAction]:
        stop = Stop(self.generation, self.serves)
        self.generation, self.serves = 0, False
        return [stop] if stop.generation else []


def shown(text: str) -> str:
    """Return another member's text as a message shows it: on one line, and not too long."""
    return "".join(each if each.isprintable() else "?" for each in text[:LONGEST_TEXT])
