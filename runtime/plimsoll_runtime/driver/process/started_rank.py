"""The process of a rank, as its parent sees it: the engine process, or the agent of a member."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace

from plimsoll_runtime.driver.process.control_socket import KILL_SECONDS
from plimsoll_runtime.driver.process.exit_errors import exit_text
from plimsoll_runtime.driver.process.handshake import StartRank
from plimsoll_runtime.driver.process.heartbeat import Pulse
from plimsoll_runtime.driver.process.stage_segments import StageSegments
from plimsoll_runtime.driver.process.standby import StandbyProcess
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.group_options import GroupOptions
from plimsoll_runtime.parallel.losses import LossCause, LossError
from plimsoll_runtime.weights.image import Image
from plimsoll_telemetry.logs import log_settings

logger = logging.getLogger(__name__)

SHOW_STACKS = signal.SIGUSR1
"""On this signal a rank writes the stacks of its threads to its standard error."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The ranks of one machine, of the `size` ranks of a group. The other fields are those of `StartRank`."""

    ranks: range
    size: int
    meeting: str
    address: str
    member: int | None = None
    num_blocks: int | None = None
    failed_backends: Sequence[str] = ()
    instructions: str | None = None

    def order(self, config: EngineConfig, rank: int) -> StartRank:
        """Return the order that starts a rank. It has no options of the group, and so no token."""
        return StartRank(
            config=replace(config, group=GroupOptions()),
            rank=rank,
            size=self.size,
            place=rank - self.ranks.start,
            neighbours=len(self.ranks),
            meeting=self.meeting,
            address=self.address,
            parent=os.getpid(),
            log=log_settings(),
            member=self.member,
            num_blocks=self.num_blocks,
            failed_backends=self.failed_backends,
            instructions=self.instructions,
        )


class StartedRank:
    """The process of a rank, its socket for constraints, and `ended_fd`, which is readable when the process has
    ended.
    """

    def __init__(
        self, order: StartRank, standby: StandbyProcess, steps: socket.socket, segments: StageSegments, image: Image
    ) -> None:
        """Start the rank in a standby process, which is used up.

        `steps`: the rank's end of its channel of steps, which is closed here. `image`: see `StartRank`. Raises
        StandbyDeadError.
        """
        self.number = order.rank
        self._segments = segments
        self.constraints, their_constraints = socket.socketpair()
        try:
            with steps, their_constraints:
                ends = (steps.fileno(), their_constraints.fileno())
                standby.start(order, [*ends, segments.of(order.rank), image.descriptor])
        except BaseException:
            standby.close()
            self.constraints.close()
            raise
        self._process, self._lifeline = standby.process, standby.lifeline
        self.ended_fd = os.pidfd_open(standby.pid)
        with os.fdopen(standby.page, "rb", buffering=0) as page:
            self._pulse = Pulse(page.fileno())

    @property
    def name(self) -> str:
        return str(self.number)

    @property
    def sums(self) -> int:
        # Sums within a step of the CPU kernels are counted in shared memory only.
        return self._pulse.read().taken + self._segments.rounds(self.number)

    def show_stacks(self) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, SHOW_STACKS)

    def death(self) -> LossError:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)
        return LossError(f"rank {self.number} {exit_text(self._process.returncode)}", LossCause.RANK_ENDED)

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        try:
            self._process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            logger.error("rank %d was killed but has not ended; its memory may still be in use", self.number)
        os.close(self.ended_fd)
        self._lifeline.close()
        self.constraints.close()
        self._pulse.close()
