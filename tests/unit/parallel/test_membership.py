"""The decisions of leader and members: who joins, which generation runs, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_support.members import SETS, TOKEN, Network, identity

from plimsoll_runtime.parallel.group_messages import (
    NONCE_BYTES,
    AskSums,
    Challenge,
    EndGeneration,
    GenerationFailed,
    Hello,
    Join,
    Leaving,
    Refused,
    StartGeneration,
    Sums,
    Welcome,
)
from plimsoll_runtime.parallel.instruction_sets import named
from plimsoll_runtime.parallel.losses import LossCause
from plimsoll_runtime.parallel.membership import (
    Adopt,
    Answer,
    Answered,
    Close,
    Identity,
    Leader,
    Leave,
    Lost,
    Member,
    Note,
    Orders,
    Reply,
    Report,
    Send,
    Stop,
    Wait,
)

NONCE, OTHER = bytes(NONCE_BYTES), bytes(range(NONCE_BYTES))
PLACES = {1: "here", 2: "there"}
ORDERS = Orders(b"secret", PLACES, PLACES, 1234, 10, 512)


def only(actions: Sequence[Any]) -> Any:
    [action] = actions
    return action


def join(member: Identity, *, number: int = 1, leader: Leader | None = None) -> tuple[Leader, list[Any], Member]:
    """Let a member answer a leader's challenge; return the leader, its actions, and the member."""
    leader = leader or Leader(identity(0), 3, 1000)
    challenge = only(leader.connected(number, NONCE))
    joining = Member(member, f"host-{member.index}")
    reply = only(joining.received(challenge.message, OTHER))
    return leader, leader.received(number, reply.message), joining


def whole_group() -> tuple[Leader, list[Member]]:
    leader, members = Leader(identity(0), 3, 1000), []
    for index in (1, 2):
        _, [welcome], member = join(identity(index), number=index, leader=leader)
        assert member.received(welcome.message, OTHER) == []
        members.append(member)
    return leader, members


def test_a_member_with_the_token_joins() -> None:
    leader, [welcome], member = join(identity(1))
    assert isinstance(welcome.message, Welcome)
    assert member.received(welcome.message, OTHER) == []
    assert member.joined
    assert (leader.missing, named(leader.missing)) == ([2], "member 2")
    assert named([1, 2]) == "members 1, 2"


def test_the_token_is_never_sent() -> None:
    member = Member(identity(1), "host")
    [reply] = member.received(Challenge(NONCE), OTHER)
    assert isinstance(reply, Reply)
    assert b"a-token-of-this-group" not in msgspec.msgpack.encode(reply.message)


@pytest.mark.parametrize("token", [None, "another-token-of-a-group"])
def test_a_member_without_the_token_is_closed_out(token: str | None) -> None:
    leader, [close], _ = join(identity(1, token=token))
    assert isinstance(close, Close)
    assert "proof is wrong" in close.reason
    assert leader.missing == [1, 2]


def test_a_leader_without_the_token_is_left() -> None:
    _, [welcome], member = join(identity(1), leader=Leader(identity(0, token=None), 3, 1000))
    [leave] = member.received(welcome.message, OTHER)
    assert isinstance(leave, Leave)
    assert (leave.final, member.joined) == (False, False)
    assert "PLIMSOLL_GROUP_TOKEN" in leave.reason


def test_a_proof_is_not_accepted_as_that_of_the_other_role() -> None:
    leader, member = Leader(identity(0), 3, 1000), Member(identity(1), "host")
    leader.connected(1, NONCE)
    [reply] = member.received(Challenge(NONCE), OTHER)
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, Join)
    [leave] = member.received(Welcome(reply.message.proof), OTHER)
    assert isinstance(leave, Leave)


@pytest.mark.parametrize(
    ("field", "other"), [("dtype", "bfloat16"), ("version", "9.9"), ("kernels", "lib-1.so"), ("weight files", "1 file")]
)
def test_a_difference_names_the_member_the_field_and_both_values(field: str, other: str) -> None:
    leader = Leader(identity(0, TOKEN, **{field: "ours"}), 3, 1000)
    _, actions, member = join(identity(1, TOKEN, **{field: other}), leader=leader)
    report, send, close = actions
    assert isinstance(report, Report)
    for part in ("member 1 (host-1)", field, other, "ours"):
        assert part in report.message
    assert isinstance(send.message, Refused)
    assert isinstance(close, Close)
    [leave] = member.received(send.message, OTHER)
    assert leave == Leave(report.message, final=True)
    _, again, _ = join(identity(1, TOKEN, **{field: other}), number=2, leader=leader)
    assert not any(isinstance(action, Report) for action in again), "the same refusal is reported once"


def test_a_missing_fact_is_a_difference() -> None:
    _, [report, *_], _ = join(identity(1, extra="yes"))
    assert "has extra yes, but member 0 has nothing" in report.message


def test_a_taken_index_is_refused_for_the_moment() -> None:
    leader, _, _ = join(identity(1))
    _, actions, member = join(identity(1), number=2, leader=leader)
    [leave] = member.received(actions[1].message, OTHER)
    assert isinstance(leave, Leave)
    assert "member 1 is host-1 already" in leave.reason
    assert not leave.final
    assert leader.missing == [2]
    leader.closed(1)
    _, [welcome], _ = join(identity(1), number=3, leader=leader)
    assert isinstance(welcome.message, Welcome)


@pytest.mark.parametrize("index", [0, 3, 63, -1])
def test_an_index_beyond_the_group_is_refused(index: int) -> None:
    _, [report, *_], _ = join(identity(index))
    assert "beyond the group, whose members are 0 to 2" in report.message


@pytest.mark.parametrize("message", [GenerationFailed(1000, "x"), Sums(1000, 1, {})])
def test_a_message_before_joining_closes_the_connection(message: Any) -> None:
    leader = Leader(identity(0), 3, 1000)
    leader.connected(1, NONCE)
    [close] = leader.received(1, message)
    assert isinstance(close, Close)


def test_a_generation_needs_all_members_and_has_a_larger_number_than_any_before() -> None:
    leader, members = whole_group()
    sends: list[Any] = leader.start(ORDERS)
    assert [(each.message.first, each.message.end) for each in sends] == [(1, 2), (2, 3)]
    with pytest.raises(ValueError, match="generation 1000 runs"):
        leader.start(ORDERS)
    [_] = members[0].received(sends[0].message, OTHER)
    assert members[0].received(sends[0].message, OTHER) == [], "a duplicate starts nothing"
    leader.end("a test")
    restarted = Leader(identity(0), 3, 5)
    assert members[0].disconnected() == [Stop(1000, served=False)]
    challenge = only(restarted.connected(1, NONCE))
    reply = only(members[0].received(challenge.message, OTHER))
    restarted.received(1, reply.message)
    join(identity(2), number=2, leader=restarted)
    restarted.start(ORDERS)
    assert restarted.generation == 1001, "though its clock is behind"
    with pytest.raises(ValueError, match="are missing"):
        Leader(identity(0), 3, 1).start(ORDERS)


def test_members_with_other_processors_take_the_least_set() -> None:
    """A member with another processor replaces one twice. Each change is noted once."""

    def started() -> tuple[list[str], set[str | None]]:
        actions = leader.start(ORDERS)
        notes = [each.message for each in actions if isinstance(each, Note)]
        sends: list[Any] = [each for each in actions if isinstance(each, Send)]
        leader.end("a test")
        assert len(sends) == 2
        return notes, {each.message.instructions for each in sends}

    leader = Leader(identity(0, sets=SETS[:2]), 3, 1000)
    join(identity(1, sets=SETS[:1]), number=1, leader=leader)
    join(identity(2, sets=SETS[:2]), number=2, leader=leader)
    said = "the group computes with avx2, the least of its members: avx512 on members 0, 2, avx2 on member 1"
    assert started() == ([said], {"avx2"})
    assert leader.instructions.difference == said
    assert started() == ([], {"avx2"})
    leader.closed(1)
    assert leader.instructions.difference == said, "until the next generation"
    join(identity(1, sets=SETS[:2]), number=3, leader=leader)
    assert started() == (
        ["the group computes with avx512, the best instruction set of all its members"],
        {"avx512"},
    )
    assert leader.instructions.difference == ""
    assert started() == ([], {"avx512"})
    leader.closed(3)
    join(identity(1, sets=SETS[:3]), number=4, leader=leader)
    said = "the group computes with avx512, the least of its members: avx512 on members 0, 2, amx on member 1"
    assert started() == ([said], {"avx512"})


def test_the_end_of_a_rank_ends_the_generation_once() -> None:
    leader, members = whole_group()
    send: Any = leader.start(ORDERS)[0]
    members[0].received(send.message, OTHER)
    failed: list[Any] = members[0].failed(1000, "rank 1 was killed by signal 9")
    stop, reply = failed
    assert stop == Stop(1000, served=False)
    assert members[0].failed(1000, "again") == []
    ended: list[Any] = leader.received(1, reply.message)
    *ends, lost = ended
    assert [each.message for each in ends] == [EndGeneration(1000)] * 2
    assert lost == Lost(1000, "member 1: rank 1 was killed by signal 9", LossCause.RANK_ENDED)
    assert leader.received(1, reply.message) == []


def test_a_lost_connection_ends_the_generation() -> None:
    leader, _ = whole_group()
    leader.start(ORDERS)
    end, lost = leader.closed(2)
    assert end == Send(1, EndGeneration(1000))
    assert lost == Lost(1000, "the connection to member 2 was lost", LossCause.MEMBER_LOST)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello(999, 1, b"secret"), "its generation is 999, but 1000 runs"),
        (Hello(1001, 1, b"secret"), "its generation is 1001"),
        (Hello(1000, 1, b"other!"), "does not know the generation's secret"),
        (Hello(1000, 0, b"secret"), "rank 0 is not expected"),
        (Hello(1000, 3, b"secret"), "rank 3 is not expected"),
    ],
)
def test_connections_of_other_ranks_are_refused(hello: Hello, reason: str) -> None:
    leader, _ = whole_group()
    leader.start(ORDERS)
    [close] = leader.hello(9, hello)
    assert isinstance(close, Close)
    assert reason in close.reason


def test_a_rank_connects_once_and_only_while_its_generation_runs() -> None:
    leader, _ = whole_group()
    assert isinstance(leader.hello(9, Hello(0, 1, b""))[0], Close), "there is no generation"
    leader.start(ORDERS)
    assert leader.hello(9, Hello(1000, 1, b"secret")) == [Adopt(9, 1)]
    assert isinstance(leader.hello(10, Hello(1000, 1, b"secret"))[0], Close)
    leader.end("a test")
    assert isinstance(leader.hello(11, Hello(1000, 2, b"secret"))[0], Close)


def test_sums_are_asked_for_and_answered_within_a_generation() -> None:
    leader, [member, _] = whole_group()
    assert member.received(AskSums(1000, 1), OTHER) == []
    sends: list[Any] = leader.start(ORDERS)
    member.received(sends[0].message, OTHER)
    assert member.received(AskSums(1000, 1), OTHER) == [Answer(AskSums(1000, 1))]
    assert leader.received(1, Sums(1000, 1, {1: 5})) == [Answered(1, {1: 5})]
    assert leader.received(1, Sums(999, 1, {1: 5})) == []


@pytest.mark.parametrize("message", [EndGeneration(5), AskSums(5, 1), Welcome(b""), Refused(b"", "no", True)])
def test_a_member_follows_no_orders_before_it_joins(message: Any) -> None:
    member = Member(identity(1), "host")
    [leave] = member.received(message, OTHER)
    assert isinstance(leave, Leave)
    assert not leave.final
    start = StartGeneration(generation=5, secret=b"", first=1, end=2, size=3, meeting="tcp://a:1", host="a", port=1)
    [leave] = member.received(start, OTHER)
    assert isinstance(leave, Leave)
    assert member.generation == 0


def test_a_member_that_leaves_is_released_after_a_time() -> None:
    leader, [member, other] = whole_group()
    order: Any = leader.start(ORDERS)[0]
    member.received(order.message, OTHER)
    assert member.leave() == [Reply(Leaving())]
    assert member.leave() == [], "it says so once"
    assert leader.received(1, Leaving()) == [Wait(1)]
    assert leader.received(1, Leaving()) == []
    assert leader.generation == 1000, "the generation goes on meanwhile"
    first, second, lost, close = leader.release(1)
    assert (first, second) == (Send(1, EndGeneration(1000)), Send(2, EndGeneration(1000)))
    assert lost == Lost(1000, "member 1 leaves", LossCause.MEMBER_LEFT)
    assert close == Close(1, "")
    assert leader.missing == [1]
    assert leader.release(1) == []
    join(identity(1), number=3, leader=leader)
    assert leader.missing == []
    assert not other.leaving


@pytest.mark.parametrize("drains_first", [False, True])
def test_a_leader_that_drains_keeps_a_member_that_leaves(drains_first: bool) -> None:
    leader, _ = whole_group()
    leader.start(ORDERS)
    if drains_first:
        leader.drain()
    assert leader.received(1, Leaving()) == ([] if drains_first else [Wait(1)])
    leader.drain()
    assert leader.release(1) == []
    assert (leader.generation, leader.missing) == (1000, [])
    leader.end("a rank has ended")
    assert len(leader.start(ORDERS)) == 2, "requests in flight get another generation"


def test_a_member_may_leave_without_a_generation_or_be_lost_before_its_time() -> None:
    leader, _ = whole_group()
    assert leader.received(1, Leaving()) == [Wait(1)]
    assert leader.release(1) == [Close(1, "")]
    leader.received(2, Leaving())
    leader.closed(2)
    assert leader.release(2) == []


def test_a_member_that_has_not_joined_leaves_at_once() -> None:
    [leave] = Member(identity(1), "host").leave()
    assert isinstance(leave, Leave)
    leader = Leader(identity(0), 3, 1000)
    leader.connected(1, NONCE)
    [close] = leader.received(1, Leaving())
    assert isinstance(close, Close)
    assert "before it joined" in close.reason


WEIGHTS = {
    "deliver": 100,
    "duplicate": 3,
    "connect": 20,
    "start": 20,
    "lose": 1,
    "fail": 2,
    "expire": 3,
    "break_member": 1,
    "break_leader": 1,
    "restart": 1,
    "leave": 2,
    "release": 5,
    "drain": 1,
}
"""Operations of a network, by how often each is drawn."""
STEPS = 600


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 1))
def test_one_generation_serves_whatever_the_network_does(seed: int, healed: int) -> None:
    chance, network = random.Random(seed), Network()
    for name in chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS):
        if name == "connect":
            # Nearly always to the same leader: two of them seldom get all members.
            network.connect(chance.randrange(2), int(chance.random() < 0.1))
        elif name in ("deliver", "duplicate", "lose"):
            getattr(network, name)(0 if chance.random() < 0.6 else chance.randrange(100))
        else:
            getattr(network, name)(chance.randrange(2))
        network.check()
    network.heal(healed)
    network.check()
    [generation] = network.serving()
    assert all(member.member.serves and member.alive == generation for member in network.members)
    assert generation > max((run for member in network.members for run in member.runs[:-1]), default=0)


def test_the_simulated_network_serves_and_loses_generations() -> None:
    """The test above means little unless many generations begin and end in it."""
    chance, network, served = random.Random(1), Network(), set[int]()
    for name in chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=10 * STEPS):
        if name in ("deliver", "duplicate", "lose"):
            getattr(network, name)(0)
        else:
            getattr(network, name)(*((chance.randrange(2), 0) if name == "connect" else (chance.randrange(2),)))
        served |= network.serving()
    assert len(served) >= 10
