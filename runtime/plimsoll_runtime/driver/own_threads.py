"""A runner whose steps compute with the threads of its own engine, whoever was loaded into the process since."""

from __future__ import annotations

from plimsoll_kernels.cpu.threads import ThreadShare
from plimsoll_runtime.engine.core import Runner
from plimsoll_runtime.engine.plan import StepPlan, StepResult


class OwnThreads:
    """See engine.core.Runner."""

    def __init__(self, runner: Runner, threads: ThreadShare) -> None:
        self._runner = runner
        self._threads = threads

    def run(self, plan: StepPlan) -> StepResult:
        """Take the share, then compute the step."""
        self._threads.take()
        return self._runner.run(plan)
