"""Where steps are run: in the caller's thread when a result is asked for, or in a thread of their own before that."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import ClassVar, Protocol

from plimsoll_runtime.engine.plan import StepPlan, StepResult
from plimsoll_runtime.engine.timeline import Timeline

Run = Callable[[StepPlan], StepResult]


class Pipeline(Protocol):
    """Takes plans and gives their results, both in the order in which the plans came."""

    depth: ClassVar[int]
    """How many plans to hand over before asking for the first result."""

    def submit(self, plan: StepPlan) -> None:
        """Hand over a plan."""

    def result(self) -> StepResult:
        """Of the oldest plan without one. Raises what running it raised; later plans are not run then."""


class InlineSteps:
    """One step at a time, when its result is asked for."""

    depth: ClassVar[int] = 1

    def __init__(self, run: Run) -> None:
        self._run = run
        self._plans: deque[StepPlan] = deque()

    def submit(self, plan: StepPlan) -> None:
        """See Pipeline."""
        self._plans.append(plan)

    def result(self) -> StepResult:
        """See Pipeline."""
        return self._run(self._plans.popleft())


class ThreadedSteps:
    """Steps run one after the other in their own thread, which ends with this object.

    While it computes outside of Python, the caller plans the next step and handles the last result.
    It says in `timeline` when a step begins.
    """

    depth: ClassVar[int] = 2

    def __init__(self, run: Run, timeline: Timeline | None = None) -> None:
        self._plans: SimpleQueue[StepPlan | None] = SimpleQueue()
        self._results: SimpleQueue[StepResult | BaseException] = SimpleQueue()
        arguments = (run, timeline, self._plans, self._results)
        thread = threading.Thread(target=_work, args=arguments, name="plimsoll-steps", daemon=True)
        weakref.finalize(self, _end, self._plans, thread)
        thread.start()
        self._thread = thread

    def submit(self, plan: StepPlan) -> None:
        """See Pipeline."""
        self._plans.put(plan)

    def result(self) -> StepResult:
        """See Pipeline. Raises RuntimeError in a fork of the process, where there is no thread to wait for."""
        if not self._thread.is_alive() and self._results.empty():
            raise RuntimeError(
                "the thread that runs steps is not in this process, which is a fork of the one that loaded the model; "
                "load it after the fork, or with overlap=False"
            )
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        return result


def _end(plans: SimpleQueue[StepPlan | None], thread: threading.Thread) -> None:
    """Wait for the thread, at the interpreter's end too: it must not let go of a model while that is taken apart.

    The plans that it has not begun are dropped, since nobody will ask what came of them.
    """
    with suppress(Empty):
        while True:
            plans.get_nowait()
    plans.put(None)
    if thread is not threading.current_thread():
        thread.join()


def _work(
    run: Run,
    timeline: Timeline | None,
    plans: SimpleQueue[StepPlan | None],
    results: SimpleQueue[StepResult | BaseException],
) -> None:
    while (plan := plans.get()) is not None:
        if timeline is not None:
            timeline.begin()
        try:
            results.put(run(plan))
        except BaseException as error:  # noqa: BLE001 (`result` raises it again)
            results.put(error)
            return
