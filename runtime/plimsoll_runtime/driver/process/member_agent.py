"""A member of a parallel group other than the leader: it joins the leader, and runs ranks on its orders."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import replace

from plimsoll_runtime.driver.process.network import connect, interface_of, own_address
from plimsoll_runtime.driver.process.rank_images import RankImages
from plimsoll_runtime.driver.process.stage_segments import StageSegments
from plimsoll_runtime.driver.process.standby import ForkServer
from plimsoll_runtime.driver.process.started_rank import Placement, StartedRank
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.group_options import split_address
from plimsoll_runtime.errors import EngineDeadError, GroupMismatch, PlimsollError
from plimsoll_runtime.parallel.channel import Channel, ChannelClosed, encoded
from plimsoll_runtime.parallel.group_messages import (
    MOST_CONTROL_BYTES,
    NONCE_BYTES,
    FromLeader,
    Hello,
    StartGeneration,
    Sums,
)
from plimsoll_runtime.parallel.layout import layout_of
from plimsoll_runtime.parallel.membership import (
    Answer,
    Identity,
    Leave,
    Member,
    MemberAction,
    Reply,
    Run,
    Show,
    Stop,
)

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
"""Time for the leader to accept a connection, and for each of its messages until this member has joined."""
RETRY_SECONDS = 0.5
"""Pause before the next attempt to join."""


class MemberAgent:
    """Runs a member in the thread that calls `run`. Other threads may read the public attributes.

    `stage`: what the member waits for; "" while its ranks serve. `generations`: how many it has started.
    """

    def __init__(self, config: EngineConfig, identity: Identity) -> None:
        assert config.group.address is not None
        self._config = config
        self._identity = identity
        self._address = config.group.address
        self._member = Member(identity, socket.gethostname())
        self._ranks: dict[int, StartedRank] = {}
        self._segments: StageSegments | None = None
        self._wake = os.eventfd(0)
        self._stopping = False
        self._leaving = False
        self._reason = ""
        self.stage = "start"
        self.generations = 0

    def run(self) -> None:
        """Run until `stop` is called, or until the leader releases this member after `leave`.

        Raises GroupMismatch if this member cannot be one of the group, EngineDeadError if it cannot join in time,
        UsageError for an own address that no network interface has.
        """
        if self._config.group.own_address is not None:
            interface_of(self._config.group.own_address)
        self._images = RankImages(self._config)
        self._forks = ForkServer.spawn()
        try:
            # A fork server takes seconds to import its modules; an order to start ranks should not wait for it.
            asyncio.run(self._forks.ready())
            self._run()
        finally:
            self._end_ranks()
            self._forks.close()
            self._images.close()

    def leave(self) -> None:
        """Ask the leader to release this member, from any thread. A leader that drains first ends its requests."""
        self._leaving = True
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Make `run` return, from any thread."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)

    @property
    def joined(self) -> bool:
        """Whether the leader has accepted this member."""
        return self._member.joined

    def _is_ending(self) -> bool:
        return self._stopping or self._leaving

    def _run(self) -> None:
        seconds = self._config.group.join_seconds
        since = time.monotonic()
        while not self._is_ending():
            self.stage = f"connect to member 0 at {self._address}"
            reason, has_joined = self._session()
            if self._is_ending():
                return
            if has_joined:
                since = time.monotonic()
            if time.monotonic() >= since + seconds:
                raise EngineDeadError(
                    f"member {self._identity.index} could not join the group for {seconds:g} s: {reason}; "
                    "check --group-address, and that member 0 runs"
                )
            self._wait(RETRY_SECONDS)

    def _session(self) -> tuple[str, bool]:
        """Connect and follow the leader's orders until the connection ends.

        Return why it ended, and whether this member had joined. Raises GroupMismatch.
        """
        try:
            end = connect(*split_address(self._address), CONNECT_SECONDS)
        except OSError as error:
            return self._log_once(f"cannot connect to member 0 at {self._address}: {error}"), False
        with end:
            reason = self._follow(end, Channel(end, FromLeader, MOST_CONTROL_BYTES))
        has_joined = self._member.joined
        self._perform(self._member.disconnected(), None)
        return self._log_once(f"the connection to member 0 at {self._address} has ended: {reason}"), has_joined

    def _log_once(self, reason: str) -> str:
        """Log why this member is not joined, unless the reason is that of the last attempt. Return it."""
        if reason != self._reason and not self._is_ending():
            logger.warning("%s", reason)
        self._reason = reason
        return reason

    def _follow(self, end: socket.socket, channel: Channel) -> str:
        """Follow the leader's orders until the connection ends; return why it ended. Raises GroupMismatch."""
        member = self._member
        try:
            while not self._stopping:
                while channel.has_message:
                    had_joined = member.joined
                    actions = member.received(channel.receive(), secrets.token_bytes(NONCE_BYTES))
                    if (reason := self._perform(actions, (end, channel))) is not None:
                        return reason
                    if member.joined and not had_joined:
                        self._reason = ""
                        logger.info("joined the group of member 0 at %s", self._address)
                self._note_stage()
                if self._leaving and (reason := self._perform(member.leave(), (end, channel))) is not None:
                    return reason
                ended = self._poll(channel, None if member.joined else CONNECT_SECONDS)
                if ended is None and not member.joined:
                    return f"member 0 did not answer within {CONNECT_SECONDS:g} s"
                if ended:
                    self._perform(self._fail(ended), (end, channel))
        except ChannelClosed as error:
            if member.joined:
                return str(error) or "member 0 has ended, or the network is broken"
            return str(error) or "member 0 closed the connection; do all members have the same PLIMSOLL_GROUP_TOKEN?"
        return "this member is stopped"

    def _poll(self, channel: Channel, seconds: float | None) -> Sequence[StartedRank] | None:
        """Wait for a message, which is read, or for the end of ranks, which are returned.

        Return None after `seconds`. Raises ChannelClosed.
        """
        ends = {rank.ended_fd: rank for rank in self._ranks.values()}
        poll = select.poll()
        for descriptor in (channel.fileno(), self._wake, *ends):
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000)]
        if self._wake in ready:
            os.eventfd_read(self._wake)
        if channel.fileno() in ready:
            channel.read()
        return [ends[descriptor] for descriptor in ready if descriptor in ends] if ready else None

    def _fail(self, ended: Sequence[StartedRank]) -> list[MemberAction]:
        message = "; ".join(str(rank.death()) for rank in ended)
        logger.error("generation %d has ended: %s", self._member.generation, message)
        return self._member.failed(self._member.generation, message)

    def _perform(self, actions: Sequence[MemberAction], link: tuple[socket.socket, Channel] | None) -> str | None:
        """Carry out actions; return why to close the connection, or None to keep it. Raises GroupMismatch."""
        for action in actions:
            match action:
                case Leave(reason, final):
                    if final:
                        raise GroupMismatch(reason)
                    return reason
                case Stop(generation, served):
                    self._end_ranks()
                    if not served:
                        # An image may not fit any more, for example because the model's files have changed.
                        self._images.renew()
                    logger.info("the ranks of generation %d have ended", generation)
                case Show(rank):
                    if rank in self._ranks:
                        self._ranks[rank].show_stacks()
                case Reply(message):
                    assert link is not None
                    link[1].send(encoded(message))
                case Answer(question):
                    assert link is not None
                    sums = {number: rank.sums for number, rank in self._ranks.items()}
                    link[1].send(encoded(Sums(question.generation, question.question, sums)))
                case Run(order):
                    assert link is not None
                    self._perform(self._start(order, own_address(link[0])), link)
        return None

    def _start(self, order: StartGeneration, address: str) -> list[MemberAction]:
        """Fork the ranks of a generation. Return the actions that follow from a failure."""
        self.generations += 1
        logger.info("generation %d starts, with the ranks %d to %d", order.generation, order.first, order.end - 1)
        config = replace(self._config, max_model_len=order.max_model_len)
        try:
            if not self._forks.alive:
                self._forks = ForkServer.spawn()
            placement = Placement(
                ranks=range(order.first, order.end),
                size=order.size,
                meeting=order.meeting,
                address=self._config.group.own_address or address,
                member=self._identity.index,
                num_blocks=order.num_blocks,
                instructions=order.instructions,
            )
            self._images.prepare(order.instructions)
            self._segments = segments = StageSegments(layout_of(config), placement.ranks)
            for number in placement.ranks:
                self._ranks[number] = self._started(config, placement, number, order, segments)
        except (PlimsollError, OSError, ChannelClosed) as error:
            message = str(error) or "the connection for the steps of a rank was lost"
            logger.error("generation %d could not start: %s", order.generation, message)
            return self._member.failed(order.generation, message)
        return []

    def _started(
        self,
        config: EngineConfig,
        placement: Placement,
        number: int,
        order: StartGeneration,
        segments: StageSegments,
    ) -> StartedRank:
        """Connect to the leader for a rank's steps, and start the rank with that connection."""
        with contextlib.ExitStack() as undo:
            steps = undo.enter_context(connect(order.host, order.port, CONNECT_SECONDS))
            Channel(steps, Hello).send(encoded(Hello(order.generation, number, order.secret)))
            # The rank inherits this mode of the connection.
            steps.settimeout(None)
            standby = asyncio.run(self._forks.fork())
            undo.pop_all()
        image = self._images.images[number - placement.ranks.start]
        return StartedRank(placement.order(config, number), standby, steps, segments, image)

    def _end_ranks(self) -> None:
        for rank in self._ranks.values():
            rank.kill()
        for rank in self._ranks.values():
            rank.close()
        self._ranks = {}
        if self._segments is not None:
            self._segments.close()

    def _note_stage(self) -> None:
        member = self._member
        if member.serves:
            self.stage = ""
        elif not member.joined:
            self.stage = f"join member 0 at {self._address}"
        else:
            self.stage = "load the model" if member.generation else "wait for the other members"

    def _wait(self, seconds: float) -> None:
        """Wait, unless this member ends."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.poll(seconds * 1000)
