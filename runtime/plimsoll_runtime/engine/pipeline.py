"""Where steps are run: in the caller's thread when a result is asked for, or in a thread of their own before that."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import ClassVar, Final, Literal, Protocol

from plimsoll_runtime.engine.protocol.plan import Launched, StepPlan, StepResult
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError, moved_only
from plimsoll_runtime.engine.step_timing import Timeline

Run = Callable[[StepPlan], Launched]
Leave = Callable[[int], None]
"""Is told a number of cores: whatever computes steps leaves so many to others from then on."""


class Pipeline(Protocol):
    """Takes plans and gives their results, both in the order in which the plans came."""

    depth: ClassVar[int]
    """How many plans to hand over before asking for the first result."""

    def submit(self, plan: StepPlan) -> None:
        """Hand over a plan."""

    def result(self) -> StepResult:
        """Of the oldest plan without one. Raises what running it raised; later plans are not run then.

        After a StepMemoryError their blocks are moved and nothing is computed, until `go_on`.
        """

    def go_on(self) -> None:
        """Compute the plans that are handed over from now on: all before them have been asked for."""


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
        return self._run(self._plans.popleft()).result()

    def go_on(self) -> None:
        """See Pipeline."""


def keep_all(cores: int) -> None:
    """A Leave that leaves none."""


Orders = SimpleQueue[StepPlan | Literal["result", "go on"] | None]
"""Plans to run, that a result is asked for, and that plans are computed again; None ends the thread."""


class ThreadedSteps:
    """Steps run one after the other in their own thread, which ends with this object.

    While it computes outside of Python, the caller plans the next step and handles the last result. A step that a
    device has only begun with is waited for when its result is asked for, so that the device has the next one by then.
    It says in `timeline` when a step begins. `leave` is told how many cores the caller has work for while steps run.
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
        """See Pipeline."""
        self._under_way += 1
        self._orders.put(plan)

    def result(self) -> StepResult:
        """See Pipeline. Raises RuntimeError in a fork of the process, where there is no thread to wait for."""
        if not self._thread.is_alive() and self._results.empty():
            raise RuntimeError(
                "the thread that runs steps is not in this process, which is a fork of the one that loaded the model; "
                "load it after the fork, or with overlap=False"
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
        """See Pipeline."""
        self._orders.put("go on")


def _end(orders: Orders, thread: threading.Thread, leave: Leave) -> None:
    """Wait for the thread, at the interpreter's end too: it must not let go of a model while that is taken apart.

    The plans that it has not begun are dropped, since nobody will ask what came of them.
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
            except StepMemoryError as error:
                results.put(error)
            except BaseException as error:  # noqa: BLE001 (`result` raises it again)
                results.put(error)
                return
            told += 1


def _begun(run: Run, plan: StepPlan) -> Launched:
    try:
        return run(plan)
    except BaseException as error:  # noqa: BLE001 (it is raised when the steps before it are over)
        return _Failed(error)


class _Failed:
    """A step that could not be run. See Launched."""

    ready: Final = True

    def __init__(self, error: BaseException) -> None:
        self._error = error

    @property
    def may_go_on(self) -> bool:
        """Whether the device is as it was before."""
        return isinstance(self._error, StepMemoryError)

    def result(self) -> StepResult:
        raise self._error
