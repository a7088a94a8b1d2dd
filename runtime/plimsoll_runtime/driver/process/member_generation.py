"""The ranks of one generation of a group of several members, as the leader's engine process sees them."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from plimsoll_runtime.driver.process.member_listener import MemberListener
from plimsoll_runtime.driver.process.rank_child import RankChildren, failure_of, until_ready
from plimsoll_runtime.driver.process.rank_images import RankImages
from plimsoll_runtime.driver.process.standby import ForkServer
from plimsoll_runtime.driver.process.started_rank import Placement
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.parallel.channel import Channel, RankReady, Report
from plimsoll_runtime.parallel.leader import RankLink
from plimsoll_runtime.utils.progress import Progress

CONNECT_SECONDS = 60.0
"""Time for all members to fork their ranks, which takes some seconds if they import their modules first."""


class RemoteRank:
    """A rank of another member (`RankLink`)."""

    def __init__(self, number: int, member: int, channel: Channel, members: MemberListener, generation: int) -> None:
        self.channel = channel
        self._number = number
        self._member = member
        self._members = members
        self._generation = generation
        self._is_silent = False

    @property
    def name(self) -> str:
        silent = ", which does not answer," if self._is_silent else ""
        return f"{self._number} of member {self._member}{silent}"

    @property
    def sums(self) -> int:
        sums = self._members.sums(self._member, self._generation)
        self._is_silent = sums is None
        return -1 if sums is None else sums.get(self._number, 0)

    def show_stacks(self) -> None:
        self._members.show_stacks(self._member, self._generation, self._number)

    def death(self) -> Exception:
        loss = self._members.loss(self._generation)
        return loss or EngineDeadError(f"the connection to rank {self.name} was lost")

    def failure(self, report: Report) -> Exception:
        return failure_of(self.name, report)


class MemberGeneration:
    """Starts the ranks of a generation on all members. `links` are those of all ranks, in their order."""

    def __init__(
        self,
        config: EngineConfig,
        images: RankImages,
        forks: ForkServer,
        members: MemberListener,
        progress: Progress,
        num_blocks: int | None = None,
        failed_backends: Sequence[str] = (),
    ) -> None:
        """Wait for all members and start the ranks. `images`: of this machine's ranks. `num_blocks`, `failed_backends`:
        see `parallel.rank`.

        Raises EngineDeadError if the generation ends first, and the errors of `RankChildren`.
        """
        self._members = members
        begun = members.begin(progress, num_blocks, config.max_model_len)
        self.generation = begun.generation
        self._children: RankChildren | None = None
        self._remote: list[RemoteRank] = []
        total, group = config.ranks, config.group
        try:
            ranks = group.ranks(total, group.index)
            placement = Placement(
                ranks=ranks,
                size=total,
                meeting=begun.meeting,
                address=begun.address,
                member=group.index,
                num_blocks=num_blocks,
                failed_backends=failed_backends,
                instructions=begun.instructions,
            )
            images.prepare(begun.instructions)
            self._children = RankChildren(config, images.images, forks, placement=placement)
            for number, channel in sorted(members.channels(self.generation, CONNECT_SECONDS).items()):
                member = number // len(ranks)
                self._remote.append(RemoteRank(number, member, channel, members, self.generation))
        except BaseException:
            self.close()
            raise
        self.links: list[RankLink] = [*self._children.links, *self._remote]

    @property
    def constraints(self) -> socket.socket:
        """The socket for constraints of rank 0, which is on this machine."""
        assert self._children is not None
        return self._children.constraints

    def ready(self, progress: Progress, seconds: float | None = None) -> RankReady:
        """Wait until all ranks can run steps, and tell the members. See `until_ready`."""
        first = until_ready(dict(enumerate(self.links)), progress, seconds)
        self._members.ready(self.generation)
        return first

    def kill(self) -> None:
        """Kill the ranks of this machine, and make the other members kill theirs."""
        if self._children is not None:
            self._children.kill()
        self._members.end(self.generation, "the leader has ended the generation")

    def close(self) -> None:
        """Kill all ranks and wait for the end of this machine's. May be called again."""
        self.kill()
        if self._children is not None:
            self._children.close()
        for rank in self._remote:
            rank.channel.close()
