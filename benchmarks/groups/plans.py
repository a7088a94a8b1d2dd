"""`python -m groups.plans`: the time that plans and reports between processes add to a step of 64 decodes.

Two processes take the place of ranks: they decode each plan and report at once, rank 0 with a token for each sequence.
The time is that of `GroupRunner.run`.
"""

from __future__ import annotations

import socket
import statistics
import sys
import time
from multiprocessing import get_context
from typing import Any

import question
from options import Options
from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, SequenceOutput, StepPlan
from plimsoll_runtime.engine.step_timing import StepDurations, StepPhase, Timeline
from plimsoll_runtime.parallel.channel import Channel, ChannelClosed, Report, StepDone, encoded
from plimsoll_runtime.parallel.leader import GroupRunner
from tables import Sheet

RANKS, SEQUENCES, STEPS = 2, 64, 2000
GOAL_MS = 0.15


class Link:
    """A process in the place of a rank."""

    sums = 0

    def __init__(self, number: int, end: socket.socket) -> None:
        self.name = str(number)
        self.channel = Channel(end, Report)

    def show_stacks(self) -> None:
        """Do nothing."""

    def death(self) -> Exception:
        return RuntimeError(f"process {self.name} has ended")

    def failure(self, report: Report) -> Exception:
        return RuntimeError(f"process {self.name} reported {report}")


def measure(chosen: Options) -> dict[str, Any]:
    """Return percentiles in milliseconds over all rounds."""
    forked = get_context("fork")
    links, processes = list[Link](), []
    for number in range(RANKS):
        ours, theirs = socket.socketpair()
        links.append(Link(number, ours))
        processes.append(forked.Process(target=_report, args=(number, theirs, [link.channel for link in links])))
        processes[-1].start()
        theirs.close()
    runner = GroupRunner(links, Timeline(), StepDurations(0.0))
    plan = StepPlan([ScheduledSequence(slot, 500, [slot], (), True) for slot in range(SEQUENCES)])
    taken = []
    for _ in range(max(20, round(STEPS * chosen.scale)) * chosen.rounds):
        start = time.perf_counter()
        runner.run(plan)
        taken.append(1e3 * (time.perf_counter() - start))
    for link in links:
        link.channel.close()
    for process in processes:
        process.join()
    cuts = statistics.quantiles(taken, n=20)
    return {"sequences": SEQUENCES, "ranks": RANKS, "ms": {"p50": round(cuts[9], 3), "p95": round(cuts[18], 3)}}


def table(result: dict[str, Any]) -> Sheet:
    """Return one row."""
    ms = result["ms"]
    row = [f"{result['sequences']} decodes, {result['ranks']} ranks", f"{ms['p50']:.3f}", f"{ms['p95']:.3f}"]
    return Sheet(f"Plans and reports of a step (goal: {GOAL_MS} ms)", ["step", "ms p50", "ms p95"], [row])


def _report(number: int, end: socket.socket, inherited: list[Channel]) -> None:
    """Report each plan as computed, until the channel is closed. `inherited`: the parent's ends of channels."""
    for channel in inherited:
        channel.close()
    channel = Channel(end, StepPlan)
    while True:
        try:
            plan: StepPlan = channel.receive()
        except ChannelClosed:
            return
        tokens = [SequenceOutput(each.slot if number == 0 else None) for each in plan.sequences]
        channel.send(encoded(StepDone(tokens, [(phase, 1000) for phase in (StepPhase.FORWARD, StepPhase.SAMPLE)])))


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
