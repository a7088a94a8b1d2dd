"""Steps in a worker thread: in order, ahead of their commit, and the thread ends with its object."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Collection

import pytest
from builders import drain, make_core, request, tokens_of
from simulated import SimulatedRunner, oracle

from plimsoll_runtime.engine.core import Runner
from plimsoll_runtime.engine.pipeline import InlineSteps, Pipeline, StagedSteps, ThreadedSteps
from plimsoll_runtime.engine.protocol.plan import Launched, ScheduledSequence, SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError
from plimsoll_runtime.errors import EngineDeadError


def plan(number: int) -> StepPlan:
    return StepPlan([ScheduledSequence(slot=number, start=0, token_ids=[1], changes=(), sample=True)])


def echo(plan: StepPlan) -> StepResult:
    return StepResult([SequenceOutput(token_id=s.slot) for s in plan.sequences])


def fail_on(bad: int) -> tuple[list[int], Pipeline]:
    """Return the numbers of the plans that were run, and a pipeline that fails at one of them."""
    seen: list[int] = []

    def run(plan: StepPlan) -> StepResult:
        seen.append(plan.sequences[0].slot)
        if seen[-1] == bad:
            raise RuntimeError("the device is gone")
        return echo(plan)

    return seen, ThreadedSteps(run)


def comes(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.001)
    return False


class Echo:
    """A runner whose tokens are its slots."""

    def run(self, plan: StepPlan) -> Launched:
        return echo(plan)


class Held:
    """A runner that computes a step when a test allows it."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self.started = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def run(self, plan: StepPlan) -> Launched:
        self.started.release()
        assert self.go.acquire(timeout=30)
        return self._inner.run(plan)


@pytest.mark.parametrize("kind", [InlineSteps, ThreadedSteps])
def test_results_come_in_the_order_of_the_plans(kind: type[InlineSteps | ThreadedSteps]) -> None:
    steps = kind(echo)
    for first in range(0, 20, kind.depth):
        for number in range(first, first + kind.depth):
            steps.submit(plan(number))
        for number in range(first, first + kind.depth):
            assert steps.result() == StepResult([SequenceOutput(token_id=number)])


def test_nothing_is_run_after_a_failure() -> None:
    seen, steps = fail_on(1)
    for number in range(3):
        steps.submit(plan(number))
    steps.result()
    with pytest.raises(RuntimeError, match="the device is gone"):
        steps.result()
    assert seen == [0, 1]


class Launches:
    """A runner whose steps end when their results are requested; `log` records the calls."""

    def __init__(self, failing: str | None = None) -> None:
        self.log: list[str] = []
        self._failing = failing

    def run(self, plan: StepPlan) -> Launch:
        return Launch(self, plan)

    def note(self, what: str) -> None:
        self.log.append(what)
        if what == self._failing:
            raise RuntimeError(what)


class Launch:
    def __init__(self, runner: Launches, plan: StepPlan) -> None:
        self._runner = runner
        self._plan = plan
        self._number = plan.sequences[0].slot
        self.ready = False
        runner.note(f"begin {self._number}")

    def result(self) -> StepResult:
        if not self.ready:
            self._runner.note(f"wait {self._number}")
        self.ready = True
        return echo(self._plan)


def drive(steps: Pipeline, count: int) -> list[int]:
    """Return the results of `count` steps, planned ahead as far as the pipeline allows."""
    found = []
    for number in range(count):
        if number == 0:
            for first in range(min(count, steps.depth)):
                steps.submit(plan(first))
        elif number + steps.depth <= count:
            steps.submit(plan(number + steps.depth - 1))
        found += [output.token_id for output in steps.result().outputs if output.token_id is not None]
    return found


def test_a_device_has_the_next_step_before_one_is_waited_for() -> None:
    runner = Launches()
    assert drive(ThreadedSteps(runner.run), 4) == [0, 1, 2, 3]
    assert runner.log == [
        *("begin 0", "begin 1", "wait 0"),
        *("begin 2", "wait 1", "begin 3", "wait 2", "wait 3"),
    ]
    runner = Launches()
    assert drive(InlineSteps(runner.run), 2) == [0, 1]
    assert runner.log == ["begin 0", "wait 0", "begin 1", "wait 1"]


def test_a_step_that_the_next_one_has_waited_for_is_told_at_once() -> None:
    launched: list[Launch] = []
    runner = Launches()

    def run(plan: StepPlan) -> Launch:
        if launched:
            launched[-1].result()
        launched.append(runner.run(plan))
        return launched[-1]

    steps = ThreadedSteps(run)
    steps.submit(plan(0))
    steps.submit(plan(1))
    assert [steps.result(), steps.result()] == [StepResult([SequenceOutput(token_id=n)]) for n in (0, 1)]
    assert runner.log == ["begin 0", "wait 0", "begin 1", "wait 1"]


@pytest.mark.parametrize(
    ("failing", "results", "seen"),
    [
        ("begin 1", 1, ["begin 0", "begin 1", "wait 0"]),
        ("wait 0", 0, ["begin 0", "begin 1", "begin 2", "wait 0"]),
        ("wait 1", 1, ["begin 0", "begin 1", "begin 2", "wait 0", "wait 1"]),
    ],
)
def test_a_failure_comes_in_its_turn(failing: str, results: int, seen: list[str]) -> None:
    """A step that was launched before is waited for first. After one that could not start, no other one starts."""
    runner = Launches(failing)
    steps = ThreadedSteps(runner.run)
    for number in range(3):
        steps.submit(plan(number))
    for number in range(results):
        assert steps.result() == StepResult([SequenceOutput(token_id=number)])
    with pytest.raises(RuntimeError, match=failing):
        steps.result()
    assert runner.log == seen


def test_the_thread_and_what_it_runs_go_with_the_object() -> None:
    class Model:
        def run(self, plan: StepPlan) -> StepResult:
            return echo(plan)

    model = Model()
    gone = weakref.ref(model)
    before = set(threading.enumerate())
    steps = ThreadedSteps(model.run)
    (thread,) = set(threading.enumerate()) - before
    steps.submit(plan(1))
    steps.result()
    del model, steps
    gc.collect()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert gone() is None


def test_what_was_not_begun_is_not_run_when_nobody_is_there_to_ask() -> None:
    handed_over = threading.Event()
    seen: list[int] = []
    owner: list[ThreadedSteps] = []

    def run(plan: StepPlan) -> StepResult:
        assert handed_over.wait(timeout=30)
        seen.append(plan.sequences[0].slot)
        owner.clear()
        return echo(plan)

    before = set(threading.enumerate())
    owner.append(ThreadedSteps(run))
    (thread,) = set(threading.enumerate()) - before
    for number in range(3):
        owner[0].submit(plan(number))
    handed_over.set()
    thread.join(timeout=30)
    assert (seen, thread.is_alive()) == ([0], False)


def test_a_core_is_left_to_the_caller_while_it_does_not_wait_and_steps_run() -> None:
    left: list[int] = []
    runner = Held(Echo())
    steps = ThreadedSteps(runner.run, leave=left.append)
    for number in range(2):
        steps.submit(plan(number))
    waiting = threading.Thread(target=steps.result)
    waiting.start()
    assert runner.started.acquire(timeout=30)
    assert comes(lambda: left == [0])
    runner.go.release()
    waiting.join(timeout=30)
    assert left == [0, 1]
    runner.go.release()
    assert comes(lambda: not steps._results.empty())
    steps.result()
    assert left == [0, 1, 0], "a result that is there is not waited for, and behind the last one nothing runs"


def test_no_core_is_left_once_a_step_has_failed() -> None:
    left: list[int] = []

    def run(plan: StepPlan) -> StepResult:
        raise RuntimeError("the device is gone")

    steps = ThreadedSteps(run, leave=left.append)
    for number in range(2):
        steps.submit(plan(number))
    with pytest.raises(RuntimeError):
        steps.result()
    assert left[-1] == 0


def test_no_core_is_left_once_the_object_is_gone() -> None:
    left: list[int] = []
    steps = ThreadedSteps(echo, leave=left.append)
    for number in range(2):
        steps.submit(plan(number))
    steps.result()
    assert left[-1] == 1
    del steps
    gc.collect()
    assert left[-1] == 0


def test_a_fork_does_not_wait_for_a_thread_that_it_has_not() -> None:
    core, _ = make_core(overlap=True)
    core.add(request("r", [1, 2]))
    core.step()
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            drain(core)
        except EngineDeadError as error:
            os._exit(10 if "load the model after the fork" in str(error) else 11)
        finally:
            os._exit(12)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 10
    assert len(tokens_of(drain(core)["r"])) == 7


def test_the_next_step_is_planned_while_one_runs() -> None:
    held: list[Held] = []

    def hold(runner: Runner) -> Runner:
        held.append(Held(runner))
        return held[0]

    core, _ = make_core(overlap=True, wrap=hold)
    core.add(request("r", [1, 2]))
    (runner,) = held
    for _ in range(2):
        runner.go.release()
    assert [o.token_ids for o in core.step().outputs] == [oracle(request("r", [1, 2]), 256).token_ids[:1]]
    assert runner.started.acquire(timeout=30)
    assert runner.started.acquire(timeout=30), "the second step runs before its result is requested"
    for _ in range(8):
        runner.go.release()
    assert len(tokens_of(drain(core)["r"])) == 7


def test_offline_a_step_more_is_planned_before_answers_are_dealt_with() -> None:
    held: list[Held] = []

    def hold(runner: Runner) -> Runner:
        held.append(Held(runner))
        return held[0]

    core, _ = make_core(overlap=True, offline=True, wrap=hold)
    core.add(request("r", [1, 2]))
    (runner,) = held
    for _ in range(8):
        runner.go.release()
    core.step()
    for _ in range(3):
        assert runner.started.acquire(timeout=30), "the third step runs before the second's result is requested"
    core.check_integrity()
    assert len(tokens_of(drain(core)["r"])) == 7


def test_a_stop_token_leaves_a_step_to_be_waited_for() -> None:
    wanted = request("r", [1, 2], max_tokens=20)
    stop = oracle(wanted, 256).token_ids[2]
    core, runner = make_core(overlap=True)
    core.add(request("r", [1, 2], max_tokens=20, stop_token_ids=(stop,)))
    while not any(output.finish_reason for output in core.step().outputs):
        pass
    assert (core.stats.running, core.has_work) == (0, True)
    core.check_integrity()
    assert core.step().outputs == []
    assert (core.stats.running, core.has_work) == (0, False)
    assert runner.computed_tokens == 2 + 3
    assert core.stats.blocks_used == 0


class BrokenOff:
    """A runner whose second step is interrupted by an error."""

    def __init__(self, inner: Runner, error: BaseException) -> None:
        self._inner = inner
        self._error = error
        self._runs = 0

    def run(self, plan: StepPlan) -> Launched:
        self._runs += 1
        if self._runs == 2:
            raise self._error
        return self._inner.run(plan)


@pytest.mark.parametrize("overlap", [False, True])
def test_what_breaks_a_step_off_ends_the_engine(overlap: bool) -> None:
    """The state of the device is unknown then."""
    core, _ = make_core(wrap=lambda runner: BrokenOff(runner, SystemExit(3)), overlap=overlap)
    core.add(request("r", [1, 2]))
    with pytest.raises(SystemExit):
        drain(core)
    with pytest.raises(EngineDeadError, match="interrupted by SystemExit; load the model again"):
        core.step()


def test_a_step_that_fails_ahead_ends_the_engine_when_its_turn_comes() -> None:
    core, runner = make_core(overlap=True)
    runner.failure = RuntimeError("the device is gone")
    core.add(request("r", [1, 2]))
    with pytest.raises(EngineDeadError, match="RuntimeError: the device is gone") as caught:
        core.step()
    assert caught.value.__cause__ is runner.failure
    core.abort(["r"])
    assert not core.has_work


def test_answers_are_the_same_as_one_by_one() -> None:
    wanted = [
        request(f"r{i}", list(range(i, i + 5 + i)), temperature=float(i % 2), seed=i, max_tokens=9, ignore_eos=False)
        for i in range(9)
    ]
    core, _ = make_core(overlap=True, num_blocks=20)
    for each in wanted:
        core.add(each)
    texts = {name: tokens_of(outputs) for name, outputs in drain(core).items()}
    assert texts == {r.request_id: oracle(r, 76).token_ids for r in wanted}


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_as_many_steps_as_stages_are_under_way(stages: int) -> None:
    runner = Launches()
    steps = StagedSteps(runner.run, stages)
    assert steps.depth == stages
    assert drive(steps, 6) == list(range(6))
    begun = [number for number in range(6) if f"begin {number}" in runner.log]
    assert begun == list(range(6))
    for number in range(6):
        # A step is begun before the one `stages - 1` steps earlier is waited for.
        if number >= stages - 1:
            assert runner.log.index(f"begin {number}") < runner.log.index(f"wait {number - stages + 1}")
        if number >= stages:
            assert runner.log.index(f"begin {number}") > runner.log.index(f"wait {number - stages}")


@pytest.mark.parametrize("failing", ["begin 1", "wait 1"])
def test_a_staged_step_fails_in_its_turn_and_the_next_one_has_its_own_result(failing: str) -> None:
    runner = Launches(failing)
    steps = StagedSteps(runner.run, 3)
    for number in range(3):
        steps.submit(plan(number))
    assert steps.result() == StepResult([SequenceOutput(token_id=0)])
    with pytest.raises(RuntimeError, match=failing):
        steps.result()
    assert steps.result() == StepResult([SequenceOutput(token_id=2)])
    steps.go_on()
    steps.submit(plan(3))
    assert steps.result() == StepResult([SequenceOutput(token_id=3)])


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_an_engine_with_stages_has_the_same_answers(stages: int) -> None:
    wanted = [
        request(f"r{i}", list(range(i, i + 5 + i)), temperature=float(i % 2), seed=i, max_tokens=9, ignore_eos=False)
        for i in range(9)
    ]
    core, _ = make_core(pipeline_parallel=stages, num_blocks=20)
    for each in wanted:
        core.add(each)
    texts = {name: tokens_of(outputs) for name, outputs in drain(core).items()}
    assert texts == {r.request_id: oracle(r, 76).token_ids for r in wanted}


class ShortSteps:
    """A runner that lacks memory in the steps with these numbers. Later steps that are under way are computed."""

    def __init__(self, inner: Runner, short: Collection[int]) -> None:
        assert isinstance(inner, SimulatedRunner)
        self._inner = inner
        self._short = short
        self._steps = 0

    def run(self, plan: StepPlan) -> Launched:
        self._steps += 1
        if self._steps not in self._short:
            return self._inner.run(plan)
        self._inner.spoil(plan)
        return ShortStep()


class ShortStep:
    ready = False

    def result(self) -> StepResult:
        raise StepMemoryError("no memory")


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("short", [(1,), (4,), (3, 4), (2, 5, 9)], ids=str)
def test_steps_after_a_short_one_are_computed_again(stages: int, short: tuple[int, ...]) -> None:
    """With tokens that depend on everything before them, and prompts that share prefixes."""
    core, _ = make_core(pipeline_parallel=stages, wrap=lambda runner: ShortSteps(runner, short))
    wanted = [request(f"r{i}", [*range(10, 22), i % 3, i], max_tokens=9, seed=i, temperature=1.0) for i in range(7)]
    for each in wanted:
        core.add(each)
    texts = {name: tokens_of(outputs) for name, outputs in drain(core).items()}
    assert texts == {each.request_id: oracle(each, 256).token_ids for each in wanted}
