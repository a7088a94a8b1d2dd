"""The engine process's side of a group's steps, with threads in place of rank processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest
from parallel_support.steps import Answer, FakeLink, answering

from plimsoll_runtime.engine.protocol.messages import LoadProgress, LogprobEntry, RequestContext
from plimsoll_runtime.engine.protocol.plan import (
    LAST_CHOSEN,
    Launched,
    ScheduledSequence,
    SequenceOutput,
    SlotInit,
    StepPlan,
    StepResult,
    TableChange,
)
from plimsoll_runtime.engine.protocol.prompt import Prompt
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError
from plimsoll_runtime.engine.step_timing import StepDurations, StepPhase, Timeline
from plimsoll_runtime.parallel.channel import RankReady, Report, StepDone, StepShort
from plimsoll_runtime.parallel.leader import GroupRunner, of_member
from plimsoll_runtime.parallel.losses import LossCause, RankLostError

SECONDS = 30.0


def unlimited() -> StepDurations:
    """Return durations by which no step is too long."""
    return StepDurations(0.0)


def sequence(slot: int, *tokens: int, sample: bool = True, start: int = 0) -> ScheduledSequence:
    return ScheduledSequence(slot, start, tokens, [TableChange(0, 0, 0, [slot + 1])], sample)


def new_slot(slot: int, *tokens: int) -> SlotInit:
    return SlotInit(slot, RequestContext(SamplingParams(temperature=0.5, seed=7), seed=7), Prompt(tokens))


def sampling(token_of: Callable[[ScheduledSequence], int]) -> Answer:
    """Return a rank 0 that samples these tokens."""

    def answer(plan: StepPlan) -> Report:
        outputs = [SequenceOutput(token_of(each) if each.sample else None) for each in plan.sequences]
        return StepDone(outputs)

    return answer


def silent(plan: StepPlan) -> Report:
    """Compute a plan as a member does: outputs without tokens."""
    return StepDone([SequenceOutput()] * len(plan.sequences))


class Recorded:
    """A rank that records the plans that arrive."""

    def __init__(self, answer: Answer = silent) -> None:
        self.plans: list[StepPlan] = []
        self._answer = answer

    def __call__(self, plan: StepPlan) -> Report | None:
        self.plans.append(plan)
        return self._answer(plan)


def tokens_of(plan: StepPlan) -> list[list[int]]:
    return [list(each.token_ids) for each in plan.sequences]


def results(answers: Sequence[Answer], plans: Sequence[StepPlan]) -> list[StepResult]:
    with answering(answers) as links:
        runner = GroupRunner(links, Timeline(), unlimited())
        return [runner.run(plan).result() for plan in plans]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_outputs_are_those_of_rank_0_in_the_order_of_the_plan(ranks: int) -> None:
    answers = [sampling(lambda each: 10 * each.slot + len(each.token_ids)), *[silent] * (ranks - 1)]
    plan = StepPlan([sequence(3, 5, 6), sequence(0, 7), sequence(2, 8, 9, 9, sample=False), sequence(1, 4)])
    [result] = results(answers, [plan])
    assert [output.token_id for output in result.outputs] == [32, 1, None, 11]


@pytest.mark.parametrize("last", [0, 1, 2])
def test_a_step_waits_for_all_ranks(last: int) -> None:
    """One rank reports when all others have reported, whichever it is."""
    ranks = 3
    reported = threading.Semaphore(0)

    def of_rank(number: int) -> Answer:
        def answer(plan: StepPlan) -> Report:
            if number == last:
                assert all(reported.acquire(timeout=SECONDS) for _ in range(ranks - 1))
            else:
                reported.release()
            return StepDone([SequenceOutput(42 if number == 0 else None)])

        return answer

    found = results([of_rank(number) for number in range(ranks)], [StepPlan([sequence(0, 5)])] * 3)
    assert [result.outputs[0].token_id for result in found] == [42] * 3


def test_results_of_rank_0_arrive_whole() -> None:
    """More log probabilities than a socket reads at a time."""
    entry = LogprobEntry(4, -0.25, 1, [(token, -0.5 * token) for token in range(20)])
    outputs = [SequenceOutput(4, entry, [entry] * 500), SequenceOutput(error="logits with NaN"), SequenceOutput(1)]
    done = StepDone(outputs, attention_fallbacks=2)
    plan = StepPlan([sequence(slot, 5) for slot in range(3)])
    [result] = results([lambda _: done, silent], [plan])
    assert result.attention_fallbacks == 2
    assert [(each.token_id, each.error) for each in result.outputs] == [(4, None), (None, "logits with NaN"), (1, None)]
    assert list(result.outputs[0].prompt_logprobs) == [entry] * 500


def test_all_ranks_get_the_tokens_that_rank_0_sampled() -> None:
    members = [Recorded(), Recorded()]
    sampled = iter([11, 12, 13, 14, 15])
    first = Recorded(sampling(lambda _: next(sampled)))
    plans = [
        StepPlan([sequence(0, 5, 6), sequence(1, 7, 8, sample=False)]),
        StepPlan([sequence(1, 9, start=2), sequence(0, LAST_CHOSEN, start=2)]),
        StepPlan([sequence(0, LAST_CHOSEN, start=3), sequence(1, LAST_CHOSEN, start=3)]),
    ]
    results([first, *members], plans)
    for rank in (first, *members):
        assert [tokens_of(plan) for plan in rank.plans] == [[[5, 6], [7, 8]], [[9], [11]], [[13], [12]]]
    assert tokens_of(plans[1]) == [[9], [LAST_CHOSEN]], "the caller's plan is left as it is"


def test_a_step_without_a_slot_leaves_its_last_token() -> None:
    member = Recorded()
    plans = [
        StepPlan([sequence(0, 5), sequence(1, 6)]),
        StepPlan([sequence(0, 7, sample=False, start=1)]),
        StepPlan([sequence(1, LAST_CHOSEN, start=1)]),
    ]
    results([sampling(lambda each: 20 + each.slot), member], plans)
    assert tokens_of(member.plans[-1]) == [[21]]


def test_members_get_draws_in_place_of_parameters_and_prompts() -> None:
    first, member = Recorded(sampling(lambda _: 3)), Recorded()
    plan = StepPlan(
        [sequence(2, 5, 6), sequence(0, 4, sample=False)],
        freed_slots=[1, 3],
        new_slots=[new_slot(2, 5, 6), new_slot(0, 4, 4)],
        block_copies=[(1, 2)],
        moves=[(9, 3)],
        num_blocks=8,
        idle_steps=2,
    )
    results([first, member], [plan])
    [[own], [theirs]] = first.plans, member.plans
    assert [list(init.prompt_ids) for init in own.new_slots] == [[5, 6], [4, 4]]
    assert [init.context.params.temperature for init in own.new_slots] == [0.5, 0.5]
    assert list(theirs.new_slots) == []
    assert [(draw.slot, draw.temperature, draw.num_outputs, draw.whole) for draw in theirs.draws] == [
        (2, 0.5, 0, False),
        (0, 0.5, 0, False),
    ]
    assert list(own.draws) == []
    assert list(theirs.freed_slots) == [1, 3]
    for each in (own, theirs):
        assert (list(each.block_copies), list(each.moves)) == ([(1, 2)], [(9, 3)])
        assert (each.num_blocks, each.idle_steps) == (8, 2)
        assert [(one.slot, one.start, one.sample) for one in each.sequences] == [(2, 0, True), (0, 0, False)]
        assert [list(change.blocks) for one in each.sequences for change in one.changes] == [[3], [1]]


def test_a_members_plan_leaves_the_other_plan_as_it_is() -> None:
    plan = StepPlan([sequence(1, 5)], new_slots=[new_slot(1, 5)])
    changed = of_member(plan)
    assert len(changed.draws) == 1
    assert not changed.new_slots
    assert len(plan.new_slots) == 1


@pytest.mark.parametrize("short", [{0}, {1}, {2}, {0, 2}, {0, 1, 2}], ids=str)
def test_a_step_for_which_a_rank_lacks_memory(short: set[int]) -> None:
    """The step fails after all ranks have reported, so that the next step's reports are its own."""

    def of_rank(number: int) -> Answer:
        steps = iter(range(3))

        def answer(plan: StepPlan) -> Report:
            if next(steps) == 1 and number in short:
                return StepShort(f"rank {number} needs more memory")
            return StepDone([SequenceOutput(each.token_ids[0] if number == 0 else None) for each in plan.sequences])

        return answer

    with answering([of_rank(number) for number in range(3)]) as links:
        runner = GroupRunner(links, Timeline(), unlimited())
        assert runner.run(StepPlan([sequence(0, 5)])).result().outputs[0].token_id == 5
        with pytest.raises(StepMemoryError, match=f"rank {min(short)} needs more memory"):
            runner.run(StepPlan([sequence(0, 6), sequence(1, 6)])).result()
        assert runner.run(StepPlan([sequence(0, 7)])).result().outputs[0].token_id == 7


@pytest.mark.parametrize("ended", [0, 1, 2])
def test_a_rank_that_ends_in_a_step_ends_the_group(ended: int) -> None:
    """The other ranks wait for it and never report; the error is still raised."""
    released = threading.Event()

    def of_rank(number: int) -> Answer:
        def answer(plan: StepPlan) -> Report | None:
            if number == ended:
                return None
            assert released.wait(SECONDS)
            return silent(plan)

        return answer

    with answering([of_rank(number) for number in range(3)]) as links:
        try:
            with pytest.raises(Exception, match=f"rank {ended} has ended"):
                GroupRunner(links, Timeline(), unlimited()).run(StepPlan([sequence(0, 5)])).result()
        finally:
            released.set()


@pytest.mark.parametrize("ended", [0, 1])
def test_a_rank_that_ended_before_a_step_ends_the_group(ended: int) -> None:
    closed = threading.Event()

    def leave(plan: StepPlan) -> None:
        closed.set()

    with answering([leave if number == ended else sampling(lambda _: 1) for number in range(2)]) as links:
        runner = GroupRunner(links, Timeline(), unlimited())
        with pytest.raises(RankLostError, match=f"rank {ended} has ended"):
            runner.run(StepPlan([sequence(0, 5)])).result()
        assert closed.is_set()
        with pytest.raises(RankLostError, match=f"rank {ended} has ended"):
            runner.run(StepPlan([sequence(0, 5)]))


@pytest.mark.parametrize("report", [LoadProgress("load weights", 0.5), RankReady(None)], ids=["progress", "ready"])
def test_another_report_than_a_result_ends_the_group(report: Report) -> None:
    with (
        answering([sampling(lambda _: 1), lambda _: report]) as links,
        pytest.raises(RankLostError, match=f"rank 1 failed with {type(report).__name__}") as raised,
    ):
        GroupRunner(links, Timeline(), unlimited()).run(StepPlan([sequence(0, 5)])).result()
    assert raised.value.cause is LossCause.RANK_ENDED


def test_waits_are_added_up_by_rank() -> None:
    waited: dict[int, float] = {1: 1.0}
    answers: list[Answer] = [
        lambda plan: StepDone([SequenceOutput(1)], waited=0.25),
        lambda plan: StepDone([SequenceOutput()], waited=0.5),
        lambda plan: StepDone([SequenceOutput()]),
    ]
    with answering(answers) as links:
        runner = GroupRunner(links, Timeline(), unlimited(), waited=waited)
        for _ in range(2):
            runner.run(StepPlan([sequence(0, 5)])).result()
    assert waited == {0: 0.5, 1: 2.0}


def test_phases_are_those_of_rank_0() -> None:
    clock = iter(range(0, 10**6, 1000))
    timeline = Timeline(clock=lambda: next(clock))
    phases = [(StepPhase.INPUTS, 100), (StepPhase.FORWARD, 300), (StepPhase.SAMPLE, 200)]
    answers: list[Answer] = [
        lambda plan: StepDone([SequenceOutput(1)], phases),
        lambda plan: StepDone([SequenceOutput()], [(StepPhase.FORWARD, 900)]),
    ]
    with answering(answers) as links:
        timeline.begin()
        GroupRunner(links, timeline, unlimited()).run(StepPlan([sequence(0, 5)])).result()
    assert [(span.phase, span.end_ns - span.start_ns) for span in timeline.take()] == phases
    timeline.check_integrity()


@pytest.mark.parametrize("late", [0, 1, 2])
def test_the_rank_that_has_begun_the_fewest_sums_hangs(late: int) -> None:
    """The others wait for it in a later sum."""
    released = threading.Event()

    def wait(plan: StepPlan) -> Report | None:
        assert released.wait(SECONDS)
        return None

    with answering([wait, wait, wait]) as links:
        for number, link in enumerate(links):
            link.sums = 5 if number == late else 6
        durations = StepDurations(0.05)
        durations.learn(1, 1e-3)
        try:
            with pytest.raises(RankLostError, match=f"rank {late} hangs: a step took more than 0.1 s") as raised:
                GroupRunner(links, Timeline(), durations).run(StepPlan([sequence(0, 5)])).result()
            assert raised.value.cause is LossCause.RANK_HUNG
        finally:
            released.set()
        assert [link.shown for link in links] == [1, 1, 1]


# Several steps under way: two stages of one rank, or of two. The last ranks are the first stage.


def staged(links: Sequence[FakeLink], stages: int = 2, durations: StepDurations | None = None) -> GroupRunner:
    return GroupRunner(links, Timeline(), durations or unlimited(), tensor=len(links) // stages)


def echo(plan: StepPlan) -> Report:
    """Sample each sequence's first token again."""
    return StepDone([SequenceOutput(each.token_ids[0]) for each in plan.sequences])


def one(token: int) -> StepPlan:
    return StepPlan([sequence(token, token)])


def token_of(step: Launched) -> int | None:
    return step.result().outputs[0].token_id


@pytest.mark.parametrize("ranks", [2, 4])
def test_steps_are_started_before_earlier_ones_have_ended(ranks: int) -> None:
    arrived = [threading.Semaphore(0) for _ in range(ranks)]
    go = threading.Event()

    def of_rank(number: int) -> Answer:
        def answer(plan: StepPlan) -> Report:
            arrived[number].release()
            assert go.wait(SECONDS)
            return echo(plan)

        return answer

    with answering([of_rank(number) for number in range(ranks)]) as links:
        runner = staged(links)
        steps = [runner.run(one(token)) for token in (5, 6, 7)]
        assert not any(step.ready for step in steps)
        assert all(each.acquire(timeout=SECONDS) for each in arrived)
        go.set()
        assert [token_of(step) for step in steps] == [5, 6, 7]


def test_reports_of_later_steps_arrive_early() -> None:
    """The first stage reports all its steps before the last one reports its first."""
    done = threading.Semaphore(0)

    def last(plan: StepPlan) -> Report:
        assert done.acquire(timeout=SECONDS)
        return echo(plan)

    reported = Recorded()
    with answering([last, reported]) as links:
        runner = staged(links)
        steps = [runner.run(one(token)) for token in range(1, 5)]
        while len(reported.plans) < 4:
            threading.Event().wait(0.001)
        done.release(4)
        assert [token_of(step) for step in steps] == [1, 2, 3, 4]
        # Nothing is left over for the next steps.
        done.release(2)
        assert [token_of(runner.run(one(token))) for token in (8, 9)] == [8, 9]


def test_plans_reach_all_stages_in_order() -> None:
    ranks = [Recorded(echo), Recorded(), Recorded()]
    with answering(ranks) as links:
        runner = staged(links, stages=3)
        steps = [runner.run(one(token)) for token in range(1, 4)]
        for token in range(4, 9):
            steps.pop(0).result()
            steps.append(runner.run(one(token)))
        for step in steps:
            step.result()
    for rank in ranks:
        assert [tokens_of(plan) for plan in rank.plans] == [[[token]] for token in range(1, 9)]


@pytest.mark.parametrize(("stages", "tensor"), [(2, 1), (3, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("under_way", [1, 2, 3])
def test_the_first_stage_that_hangs_is_named(stages: int, tensor: int, under_way: int) -> None:
    """The stages after it wait for its values, and those before it have reported."""
    for hung in range(stages):
        released = threading.Event()

        def of_rank(number: int, hung: int = hung, released: threading.Event = released) -> Answer:
            stage = stages - 1 - number // tensor

            def answer(plan: StepPlan) -> Report | None:
                if stage < hung:
                    return echo(plan)
                assert released.wait(SECONDS)
                return None

            return answer

        with answering([of_rank(number) for number in range(stages * tensor)]) as links:
            culprit = (stages - 1 - hung) * tensor + tensor - 1
            for number, link in enumerate(links):
                # In its stage, the other rank waits in a later sum; other stages have other numbers of sums.
                link.sums = 50 if number // tensor == culprit // tensor else 3
            links[culprit].sums -= 1
            durations = StepDurations(0.05)
            durations.learn(1, 1e-3)
            runner = staged(links, stages, durations)
            steps = [runner.run(one(token)) for token in range(under_way)]
            try:
                with pytest.raises(RankLostError, match=f"^rank {culprit} hangs: a step took more than"):
                    steps[0].result()
                for step in steps[1:]:
                    with pytest.raises(RankLostError):
                        step.result()
            finally:
                released.set()


@pytest.mark.parametrize("ended", [0, 1, 2])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_steps_after_the_loss_of_a_rank_fail_without_waiting(ended: int, at: int) -> None:
    """The other ranks never report, and nothing waits for them."""
    sent, released = threading.Event(), threading.Event()

    def of_rank(number: int) -> Answer:
        steps = iter(range(10))

        def answer(plan: StepPlan) -> Report | None:
            step = next(steps)
            if step < at:
                return echo(plan)
            assert (sent if number == ended else released).wait(SECONDS)
            return None

        return answer

    with answering([of_rank(number) for number in range(3)]) as links:
        runner = staged(links, stages=3)
        steps = [runner.run(one(token)) for token in (4, 5, 6)]
        sent.set()
        try:
            for number, step in enumerate(steps):
                if number < at:
                    assert token_of(step) == 4 + number
                else:
                    pattern = f"rank {ended} has ended" if number == at else "in an earlier step"
                    with pytest.raises(RankLostError, match=pattern):
                        step.result()
        finally:
            released.set()


@pytest.mark.parametrize("short", [{0}, {1}, {0, 1}], ids=str)
def test_a_short_step_while_the_next_one_runs(short: set[int]) -> None:
    """Each step has its own reports, whichever rank lacks memory."""

    def of_rank(number: int) -> Answer:
        steps = iter(range(10))

        def answer(plan: StepPlan) -> Report:
            if next(steps) == 1 and number in short:
                return StepShort(f"rank {number} needs more memory")
            return echo(plan)

        return answer

    with answering([of_rank(number) for number in range(2)]) as links:
        runner = staged(links)
        steps = [runner.run(one(token)) for token in (4, 5, 6)]
        assert token_of(steps[0]) == 4
        with pytest.raises(StepMemoryError, match=f"rank {min(short)} needs more memory"):
            steps[1].result()
        assert token_of(steps[2]) == 6
        assert token_of(runner.run(one(7))) == 7


def test_a_plan_that_cannot_be_sent_loses_the_steps_before() -> None:
    with answering([echo, lambda _: None]) as links:
        runner = staged(links)
        step = runner.run(one(4))
        message, due = "", time.monotonic() + SECONDS
        while not message and time.monotonic() < due:
            try:
                runner.run(one(5))
            except RankLostError as error:
                message = str(error)
        assert message == "rank 1 has ended"
        with pytest.raises(RankLostError, match="in an earlier step"):
            step.result()
