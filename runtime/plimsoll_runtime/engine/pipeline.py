"""Runs steps: in the caller's thread when a result is requested, or ahead of that in a worker thread."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import ClassVar, Final, Literal, Protocol

from plimsoll_runtime.engine.protocol.plan import Launched, StepPlan, StepResult
from plimsoll_runtime.engine.recovery import GenerationLostError
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError, moved_only
from plimsoll_runtime.engine.step_timing import Timeline

Run = Callable[[StepPlan], Launched]
Leave = Callable[[int], None]
"""Called with the number of CPU cores that the step's computation must leave to other threads."""


class Pipeline(Protocol):
    """Takes plans and returns their results, both in the order of submission."""

    @property
    def depth(self) -> int:
        """How many plans to submit before requesting the first result."""

    def submit(self, plan: StepPlan) -> None:
        """Queue a plan, which runs after all plans that were submitted before."""

    def result(self) -> StepResult:
        """Return the next result, in the order of submission. Raises the exception of that step; the results of later
        plans are then of no use.

        After a StepMemoryError or GenerationLostError, the results of later plans are of no use until `go_on` is
        called.
        """

    def go_on(self) -> None:
        """Resume computing. Call it when the results of all submitted plans have been requested."""


class StagedSteps:
    """Starts a step when it is submitted: one for each stage of a pipeline is under way, in other processes."""

    def __init__(self, run: Run, stages: int) -> None:
        self.depth = stages
        self._run = run
        self._steps: deque[Launched] = deque()

    def submit(self, plan: StepPlan) -> None:
        self._steps.append(_begun(self._run, plan))

    def result(self) -> StepResult:
        return self._steps.popleft().result()

    def go_on(self) -> None:
        """Do nothing: the stages compute also the plans after a failed one, whose results are not used."""


class InlineSteps:
    """Runs one step at a time, when its result is requested. `timeline`, if given, gets the start of each step."""

    depth: ClassVar[int] = 1

    def __init__(self, run: Run, timeline: Timeline | None = None) -> None:
        self._run = run
        self._timeline = timeline
        self._plans: deque[StepPlan] = deque()

    def submit(self, plan: StepPlan) -> None:
        self._plans.append(plan)

    def result(self) -> StepResult:
        if self._timeline is not None:
            self._timeline.begin()
        return self._run(self._plans.popleft()).result()

    def go_on(self) -> None: ...


def keep_all(cores: int) -> None:
    """Ignore the number: the step's computation keeps all cores."""


Orders = SimpleQueue[StepPlan | Literal["result", "go on"] | None]
"""Plans to run, requests for a result, and the order to resume computing; None ends the thread."""


class ThreadedSteps:
    """Runs steps one after the other in a worker thread, which ends with this object.

    While the thread computes outside of Python, the caller plans the next step and handles the last result. If a device
    computes asynchronously, the thread waits for a step only when its result is requested, so the device has the next
    step by then. `timeline` gets the start of each step. `leave` is called with the number of cores that the caller
    needs while steps run.
    """

    depth: ClassVar[int] = 2

    def __init__(self, run: Run, timeline: Timeline | None = None, leave: Leave = keep_all) -> None:
        self._orders: Orders = SimpleQueue()
        self._results: SimpleQueue[StepResult | BaseException] = SimpleQueue()
        self._leave = leave
        self._under_way = 0
        arguments = (run, timeline, self._orders, self._results)
        thread = threading.Thread(target=_work, args=arguments, name="plimsoll-steps", daemon=True)
        weakref.finalize(self, _end, self._orders, thread, leave)
        thread.start()
        self._thread = thread

    def submit(self, plan: StepPlan) -> None:
        self._under_way += 1
        self._orders.put(plan)

    def result(self) -> StepResult:
        """Return the oldest result. Raises RuntimeError in a forked process, which does not have the worker thread."""
        if not self._thread.is_alive() and self._results.empty():
            raise RuntimeError(
                "this process is a fork of the one that loaded the model and does not have the thread that runs steps; "
                "load the model after the fork, or with overlap=False"
            )
        self._orders.put("result")
        if self._results.empty():
            self._leave(0)
        result = self._results.get()
        self._under_way -= 1
        if isinstance(result, BaseException):
            self._leave(0)
            raise result
        self._leave(1 if self._under_way else 0)
        return result

    def go_on(self) -> None:
        self._orders.put("go on")


def _end(orders: Orders, thread: threading.Thread, leave: Leave) -> None:
    """Stop the thread and wait for it, also when the interpreter exits, so that it does not free a model during exit.

    Plans that have not started are dropped.
    """
    with suppress(Empty):
        while True:
            orders.get_nowait()
    orders.put(None)
    leave(0)
    if thread is not threading.current_thread():
        thread.join()


def _work(
    run: Run, timeline: Timeline | None, orders: Orders, results: SimpleQueue[StepResult | BaseException]
) -> None:
    launched, asked, told = deque[Launched](), 0, 0
    failed: _Failed | None = None
    while (order := orders.get()) is not None:
        if not isinstance(order, StepPlan):
            if order == "result":
                asked += 1
            else:
                failed = None
        elif failed is None:
            if timeline is not None:
                timeline.begin()
            launched.append(begun := _begun(run, order))
            if isinstance(begun, _Failed):
                failed = begun
        elif failed.may_go_on:
            launched.append(_begun(run, moved_only(order)))
        while launched and (launched[0].ready or told < asked):
            try:
                results.put(launched.popleft().result())
            except (StepMemoryError, GenerationLostError) as error:
                results.put(error)
            except BaseException as error:  # noqa: BLE001 (`result` raises it again)
                results.put(error)
                return
            told += 1


def _begun(run: Run, plan: StepPlan) -> Launched:
    try:
        return run(plan)
    except BaseException as error:  # noqa: BLE001 (raised after the results of earlier steps)
        return _Failed(error)


class _Failed:
    """A step that could not be started, as a `Launched`."""

    ready: Final = True

    def __init__(self, error: BaseException) -> None:
        self._error = error

    @property
    def may_go_on(self) -> bool:
        """Whether later steps can run: the failure left the device unchanged, or the device's state is replaced."""
        return isinstance(self._error, StepMemoryError | GenerationLostError)

    def result(self) -> StepResult:
        raise self._error
