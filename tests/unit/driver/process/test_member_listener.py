"""The leader's sockets for members: what joins, and what is closed without disturbing anything else."""

from __future__ import annotations

import contextlib
import logging
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parallel_support.members import SETS, TOKEN, identity
from port_support.held import held_port

from plimsoll_runtime.driver.process import member_listener
from plimsoll_runtime.driver.process.member_listener import MOST_UNKNOWN, Begun, MemberListener
from plimsoll_runtime.driver.process.network import interface_of
from plimsoll_runtime.engine.group_options import GroupOptions
from plimsoll_runtime.errors import AddressError, EngineDeadError, UsageError
from plimsoll_runtime.parallel.channel import Channel, ChannelClosed, encoded
from plimsoll_runtime.parallel.group_messages import (
    MOST_JOIN_BYTES,
    NONCE_BYTES,
    AskSums,
    EndGeneration,
    FromLeader,
    GenerationFailed,
    GenerationReady,
    Hello,
    Leaving,
    ShowStacks,
    StartGeneration,
    Sums,
)
from plimsoll_runtime.parallel.membership import Identity, Leave, Member, MemberAction, Reply
from plimsoll_runtime.utils.progress import silent

SECONDS = 20.0


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with held_port() as found:
        yield found


@contextlib.contextmanager
def listening(port: int, token: str | None = TOKEN) -> Iterator[MemberListener]:
    """The leader of a group of three members with a rank each."""
    options = GroupOptions(size=3, address=f"127.0.0.1:{port}", token=token)
    found = MemberListener(identity(0, token), options, 3)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def listener(port: int) -> Iterator[MemberListener]:
    with listening(port) as found:
        yield found


class Joining:
    """A member's connection to a listener."""

    def __init__(self, port: int, who: Identity) -> None:
        self.end = socket.create_connection(("127.0.0.1", port), SECONDS)
        self.channel = Channel(self.end, FromLeader)
        self.member = Member(who, f"host-{who.index}")

    def step(self) -> list[MemberAction]:
        """Take one message of the leader, and send the replies."""
        actions = self.member.received(self.channel.receive(), secrets.token_bytes(NONCE_BYTES))
        for action in actions:
            if isinstance(action, Reply):
                self.channel.send(encoded(action.message))
        return actions

    def is_closed(self) -> bool:
        """Wait until the leader has closed the connection, or for a message."""
        try:
            self.channel.receive()
        except ChannelClosed:
            return True
        return False


@contextlib.contextmanager
def member(port: int, index: int, token: str | None = TOKEN, sets: Sequence[str] = ()) -> Iterator[Joining]:
    joining = Joining(port, identity(index, token, sets))
    with joining.end:
        yield joining


@contextlib.contextmanager
def joined(port: int, index: int, sets: Sequence[str] = ()) -> Iterator[Joining]:
    with member(port, index, sets=sets) as found:
        found.step()
        found.step()
        assert found.member.joined
        yield found


def until(condition: Callable[[], bool]) -> None:
    due = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < due
        time.sleep(0.005)


def test_all_members_join_and_a_generation_begins_and_ends(listener: MemberListener, port: int) -> None:
    stages: list[str] = []
    with ThreadPoolExecutor(1) as pool, joined(port, 2) as second:
        beginning = pool.submit(listener.begin, lambda stage, _: stages.append(stage), 7, 64)
        until(lambda: stages == ["wait for member 1"])
        with joined(port, 1) as first:
            begun: Begun = beginning.result(SECONDS)
            orders = [each.channel.receive() for each in (first, second)]
            assert [(each.first, each.num_blocks, each.max_model_len) for each in orders] == [(1, 7, 64), (2, 7, 64)]
            assert begun.address == "127.0.0.1"
            assert interface_of(begun.address) == "lo"
            assert all(each.meeting == begun.meeting for each in orders)
            ranks = [greeted(each, rank) for rank, each in enumerate(orders, 1)]
            assert sorted(listener.channels(begun.generation, SECONDS)) == [1, 2]
            listener.ready(begun.generation)
            assert first.channel.receive() == GenerationReady(begun.generation)
            listener.show_stacks(1, begun.generation, 1)
            assert first.channel.receive() == ShowStacks(begun.generation, 1)
            asking = pool.submit(listener.sums, 1, begun.generation)
            question = first.channel.receive()
            assert isinstance(question, AskSums)
            first.channel.send(encoded(Sums(begun.generation, question.question, {1: 42})))
            assert asking.result(SECONDS) == {1: 42}
            assert listener.sums(1, begun.generation) is None, "it does not answer"
            first.channel.receive()
            first.channel.send(encoded(GenerationFailed(begun.generation, "rank 1 ended with code 5")))
            assert first.channel.receive() == EndGeneration(begun.generation)
            assert str(listener.loss(begun.generation)) == "member 1: rank 1 ended with code 5"
            for rank in ranks:
                assert rank.recv(1) == b"", "the channels of steps are closed"
                rank.close()


def greeted(order: StartGeneration, rank: int) -> socket.socket:
    end = socket.create_connection((order.host, order.port), SECONDS)
    Channel(end, Hello).send(encoded(Hello(order.generation, rank, order.secret)))
    return end


def test_members_with_other_processors_are_logged(port: int, caplog: pytest.LogCaptureFixture) -> None:
    options = GroupOptions(size=3, address=f"127.0.0.1:{port}", token=TOKEN)
    leader = MemberListener(identity(0, sets=SETS[:2]), options, 3)
    said = "the group computes with avx2, the least of its members: avx512 on members 0, 2, avx2 on member 1"
    with contextlib.closing(leader), contextlib.ExitStack() as stack, caplog.at_level("INFO"):
        members = [stack.enter_context(joined(port, index, sets=SETS[:index])) for index in (1, 2)]
        assert leader.begin(silent, None, None).instructions == "avx2"
        assert [each.channel.receive().instructions for each in members] == ["avx2", "avx2"]
        assert leader.instruction_set == said
    assert [each.message for each in caplog.records].count(said) == 1


def test_the_end_of_a_member_ends_the_generation(listener: MemberListener, port: int) -> None:
    with joined(port, 1), contextlib.ExitStack() as stack:
        second = stack.enter_context(joined(port, 2))
        begun = listener.begin(silent, None, None)
        second.channel.receive()
        stack.close()
        began = time.monotonic()
        with pytest.raises(EngineDeadError, match="the connection to member 2 was lost"):
            listener.channels(begun.generation, SECONDS)
        assert time.monotonic() - began < 1.0


def test_a_member_that_leaves_is_released_unless_the_leader_drains(
    listener: MemberListener, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_listener, "LEAVE_SECONDS", 0.05)
    with joined(port, 1) as first, joined(port, 2) as second:
        begun = listener.begin(silent, None, None)
        for each in (first, second):
            assert isinstance(each.channel.receive(), StartGeneration)
        first.channel.send(encoded(Leaving()))
        assert [each.channel.receive() for each in (first, second)] == [EndGeneration(begun.generation)] * 2
        assert first.is_closed()
        assert str(listener.loss(begun.generation)) == "member 1 leaves"
        with joined(port, 1) as replacement:
            begun = listener.begin(silent, None, None)
            assert isinstance(replacement.channel.receive(), StartGeneration)
            listener.drain()
            replacement.channel.send(encoded(Leaving()))
            assert not select.select([replacement.end], [], [], 0.2)[0]
            assert listener.loss(begun.generation) is None
            listener.close()
            assert replacement.channel.receive() == EndGeneration(begun.generation)
            assert replacement.is_closed()
    assert listener.refused == 0


def test_ranks_that_do_not_connect_are_named(listener: MemberListener, port: int) -> None:
    with joined(port, 1), joined(port, 2):
        begun = listener.begin(silent, None, None)
        with pytest.raises(EngineDeadError, match="the ranks 1, 2 did not connect"):
            listener.channels(begun.generation, 0.01)


def test_a_rank_of_an_older_generation_is_refused(listener: MemberListener, port: int) -> None:
    with joined(port, 1) as first, joined(port, 2):
        old = listener.begin(silent, None, None)
        order = first.channel.receive()
        listener.end(old.generation, "a test")
        new = listener.begin(silent, None, None)
        assert new.generation == old.generation + 1
        with greeted(order, 1) as rank:
            assert rank.recv(1) == b""
        assert listener.refused == 1


@pytest.mark.parametrize("token", [None, "another-token-of-a-group"])
def test_a_wrong_token_closes_the_connection(listener: MemberListener, port: int, token: str | None) -> None:
    with joined(port, 1), member(port, 2, token) as wrong:
        wrong.step()
        assert wrong.is_closed()
        assert listener.refused == 1
        with joined(port, 2):
            assert listener.begin(silent, None, None).generation


def test_a_group_without_a_token_says_so(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), listening(port, None), member(port, 1, None) as found:
        found.step()
        found.step()
        assert found.member.joined
    assert "PLIMSOLL_GROUP_TOKEN is not set: any process that reaches port" in caplog.text


def test_a_member_that_differs_is_refused_and_logged_once(
    listener: MemberListener, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        other = Joining(port, identity(1, TOKEN, dtype="bfloat16"))
        with other.end:
            other.step()
            [leave] = other.step()
            assert isinstance(leave, Leave)
            assert leave.final
            assert "member 1 (host-1) has dtype bfloat16, but member 0 has float32" in leave.reason
    assert caplog.text.count("has dtype bfloat16") == 1
    assert listener.refused == 0


def test_a_taken_index_is_refused(listener: MemberListener, port: int) -> None:
    with joined(port, 1), member(port, 1) as other:
        other.step()
        [leave] = other.step()
        assert isinstance(leave, Leave)
        assert "member 1 is host-1 already" in leave.reason
    assert listener.refused == 0


def test_silence_is_closed_after_its_time(listener: MemberListener, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_listener, "JOIN_SECONDS", 0.05)
    with member(port, 1) as silent_one:
        silent_one.channel.receive()
        assert silent_one.is_closed()
    until(lambda: listener.refused == 1)


@pytest.mark.parametrize("length", [MOST_JOIN_BYTES + 1, 2**31, 2**32 - 1])
def test_a_frame_that_is_too_large_is_closed_at_once(listener: MemberListener, port: int, length: int) -> None:
    with member(port, 1) as large:
        large.end.sendall(struct.pack("!I", length))
        large.channel.receive()
        assert large.is_closed()
    until(lambda: listener.refused == 1)


def test_connections_that_prove_nothing_are_bounded(listener: MemberListener, port: int) -> None:
    with joined(port, 1), contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(member(port, 2)) for _ in range(MOST_UNKNOWN)]
        for each in waiting:
            each.channel.receive()
        assert stack.enter_context(member(port, 2)).is_closed()
        assert not select.select([each.end for each in waiting], [], [], 0)[0], "the others may go on"
        assert listener.refused == 1
        stack.close()
        until(lambda: listener.refused == MOST_UNKNOWN + 1)
        with joined(port, 2):
            assert listener.begin(silent, None, None).generation


def test_an_idle_listener_does_not_wake_up(listener: MemberListener, port: int) -> None:
    with joined(port, 1), joined(port, 2):
        found = [each for each in threading.enumerate() if each.name == "plimsoll-members"]
        assert len(found) == 1
        assert listener._patience() is None


def test_close_ends_a_wait(port: int) -> None:
    with listening(port) as found, ThreadPoolExecutor(1) as pool:
        stages: list[str] = []
        waiting = pool.submit(found.begin, lambda stage, _: stages.append(stage), None, None)
        until(lambda: bool(stages))
        found.close()
        with pytest.raises(EngineDeadError, match="the engine has ended"):
            waiting.result(SECONDS)


def test_a_port_in_use_is_refused(listener: MemberListener, port: int) -> None:
    with pytest.raises(AddressError, match=f"cannot listen on {port} .* choose another port in --group-address"):
        MemberListener(identity(0), GroupOptions(size=3, address=f"x:{port}", token=TOKEN), 3)


def test_an_address_without_an_interface_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no network interface has the address 203.0.113.7, only .*127.0.0.1"):
        interface_of("203.0.113.7")


@pytest.fixture(scope="module")
def attacked() -> Iterator[tuple[int, int]]:
    """Ports for members and ranks of a listener with a member."""
    with held_port() as port, held_port() as steps:
        first, last = sorted((steps, steps + 1))
        options = GroupOptions(size=3, address=f"127.0.0.1:{port}", token=TOKEN, ports=f"{first}-{last}")
        found = MemberListener(identity(0), options, 3)
        with joined(port, 1) as bystander:
            yield port, steps
            until(lambda: not found._leader._nonces)
            with joined(port, 2):
                assert found.begin(silent, None, None).generation
            assert isinstance(bystander.channel.receive(), StartGeneration)
        found.close()


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda body: struct.pack("!I", len(body)) + body))
def test_random_bytes_disturb_nothing(attacked: tuple[int, int], data: bytes) -> None:
    """The fixture checks at its end that the other members go on."""
    for port in attacked:
        with socket.create_connection(("127.0.0.1", port), SECONDS) as end:
            end.sendall(data)
            end.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while end.recv(4096):
                    pass
