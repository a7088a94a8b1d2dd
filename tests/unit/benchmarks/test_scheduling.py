"""The scheduling simulator: its arithmetic, that every request is served, and that the document has the recorded
figures.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree

import pytest

from plimsoll_runtime.engine.protocol import sampling_params
from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, StepPlan
from plimsoll_runtime.engine.scheduler import policies
from plimsoll_runtime.engine.scheduler.policies import POLICIES
from scheduling import run as command
from scheduling.columns import COLUMNS, markdown
from scheduling.cost import CostModel, StepWork, error, fit, work_of
from scheduling.picture import draw
from scheduling.report import Objective, figures, jain, mean_gap, percentile, ttft
from scheduling.simulate import Engine, Outcome, Run, simulate
from scheduling.traces import BURST, TRACES, Trace, TraceRequest

COST = CostModel(0.004, 0.0002, 0.0002, 1e-7, 1e-7)
RESULTS = Path(__file__).parents[3] / "benchmarks/results/scheduling.json"


def test_what_a_step_consists_of() -> None:
    plan = StepPlan(
        [
            ScheduledSequence(0, 99, [1], (), True),
            ScheduledSequence(1, 9, [1], (), True),
            ScheduledSequence(2, 10, [1, 2, 3], (), False),
        ]
    )
    assert work_of(plan) == StepWork(1, 3, 2, 110, 11 + 12 + 13)
    assert COST.seconds(StepWork(1, 10, 5, 1000, 0)) == pytest.approx(0.004 + 0.002 + 0.001 + 0.0001)


def test_a_fit_finds_the_costs_again() -> None:
    works = [StepWork(1, p, d, 50 * d, p * p // 2) for p in (0, 16, 300, 900) for d in (0, 1, 7, 60) if p + d]
    works += [StepWork(1, 0, 8, context, 0) for context in (10, 4000)]
    samples = [(work, COST.seconds(work)) for work in works]
    found = fit(samples)
    assert found.as_dict() == pytest.approx(COST.as_dict())
    assert error(found, samples) < 1e-9


def test_a_fit_gives_no_time_back() -> None:
    samples = [(StepWork(1, 0, d, 1000 - d, 0), 0.01 + d / 1000) for d in range(10)]
    assert min(fit(samples).as_dict().values()) >= 0
    with pytest.raises(ValueError, match="2 steps are too few"):
        fit(samples[:2])


def test_a_disturbed_measurement_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = [(StepWork(1, 0, 1 + i % 4, i, 0), 0.01 * (1 + 5 * (i % 3))) for i in range(30)]
    calm = [(StepWork(1, p, d, 50 * d, 0), 0.004 + 0.001 * d + 0.0002 * p) for p in (0, 9) for d in range(1, 9)]
    before = command.COST_FILE.read_text()
    for samples, cores, told in ((noise, 0.0, "half of the steps miss"), (calm, 1.0, "other programs use 1.0 cores")):
        monkeypatch.setattr("scheduling.measure.measure", lambda threads, samples=samples: samples)
        monkeypatch.setattr("serving.quiet.cores_in_use", lambda cores=cores: cores)
        assert command.main(["--fit"]) == 1
        error_text = capsys.readouterr().err
        assert told in error_text
        assert "measure again when the machine is at rest" in error_text
        assert command.COST_FILE.read_text() == before


@pytest.mark.matrix(4)
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
def test_everybody_is_answered_or_given_up_in_time(name: str, trace: Trace) -> None:
    engine = Engine(COST)
    requests = trace.make(1, 60, 1 / fmean(map(engine.seconds_in_crowd, trace.sample(200))))
    run = simulate(engine, name, requests)
    assert [outcome.request for outcome in run.outcomes] == requests
    for outcome in run.outcomes:
        if outcome.given_up:
            assert outcome.request.interactive
            assert outcome.token_times == []
            continue
        assert len(outcome.token_times) == min(outcome.request.answer_len, outcome.request.max_tokens)
        assert outcome.request.at < outcome.token_times[0]
        assert outcome.token_times == sorted(outcome.token_times)
        assert outcome.request.deadline is None or ttft(outcome) < outcome.request.deadline + 1
    shown = figures(engine, run, Objective())
    assert 0 < shown.fairness <= 1
    assert (trace is TRACES[-1]) == (shown.hit_share > 0)


def test_a_request_alone_takes_what_the_cost_model_says() -> None:
    engine = Engine(COST)
    request = TraceRequest(at=3.0, prompt_len=700, answer_len=50, max_tokens=50, deadline=None)
    (outcome,) = simulate(engine, "fcfs", [request]).outcomes
    assert outcome.token_times[-1] - 3.0 == pytest.approx(engine.seconds_alone(request), rel=0.01)


def test_the_same_seed_gives_the_same_trace_and_bursts_come_together() -> None:
    for trace in TRACES:
        assert trace.make(5, 50, 3.0) == trace.make(5, 50, 3.0) != trace.make(6, 50, 3.0)
    burst = next(t for t in TRACES if t.name == "bursts").make(0, 2 * BURST, 3.0)
    assert len({request.at for request in burst}) == 2


def test_lengths_are_those_of_people_who_chat() -> None:
    chats = TRACES[0].sample(4000)
    assert fmean(r.prompt_len for r in chats) == pytest.approx(161, rel=0.1)
    assert 200 < fmean(r.answer_len for r in chats) < 338, "cut by max_tokens"


def test_the_figures_of_a_small_crowd() -> None:
    engine = Engine(COST)
    soon = Outcome(TraceRequest(0.0, 10, 3, 9, 1.0), [0.5, 0.6, 0.8])
    late = Outcome(TraceRequest(0.0, 10, 1, 9, None), [40.0])
    gone = Outcome(TraceRequest(0.0, 10, 3, 9, 1.0), [], given_up=True)
    assert [ttft(soon), mean_gap(soon), mean_gap(late)] == pytest.approx([0.5, 0.15, 0.0])
    objective = Objective(ttft=30.0, gap=0.2)
    assert [objective.met_by(outcome) for outcome in (soon, late, gone)] == [True, False, False]
    assert not Objective(gap=0.1).met_by(soon)
    shown = figures(engine, Run([soon, late, gone], 10.0, 5, 2, 0.0), objective)
    assert (shown.ttft_mean, shown.interactive_ttft_mean, shown.goodput) == (20.25, 0.5, 0.1)
    assert [shown.given_up, shown.preemptions] == pytest.approx([1 / 3, 2.0])


def test_jain_and_percentiles() -> None:
    assert jain([2.0, 2.0]) == 1.0
    assert jain([1.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([0.0, 0.0]) == 1.0
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 99), percentile(values, 50), percentile([7.0], 99)) == (99.0, 50.0, 7.0)


def test_the_document_and_the_picture_show_what_was_recorded() -> None:
    traces = json.loads(RESULTS.read_text())["traces"]
    document = command.DOCUMENT.read_text()
    assert document == command.with_figures(document, markdown(traces)), "run scheduling.run --json ... --docs"
    assert command.PICTURE.read_text() == draw(traces)
    bars = ElementTree.parse(command.PICTURE).getroot().iter("{http://www.w3.org/2000/svg}rect")
    assert len(list(bars)) == len(TRACES) * len(POLICIES) * sum(column.drawn for column in COLUMNS)


def test_the_document_names_the_constants_that_there_are() -> None:
    document = " ".join(command.DOCUMENT.read_text().split())
    for told in (
        f"{policies.PRIORITY_SECONDS} seconds of waiting a level",
        f"{policies.DEFAULT_DEADLINE_SECONDS} seconds for requests without",
        f"{policies.TOKENS_PER_EXPECTED_TOKEN} tokens computed by the engine for each token (of the prompt",
        f"{policies.TOKENS_PER_CACHED_TOKEN} tokens computed by the engine for each token that is cached",
        f"from -{sampling_params.PRIORITY_LIMIT} (first) to {sampling_params.PRIORITY_LIMIT} (last)",
        f"at most {sampling_params.DEADLINE_LIMIT:g}",
        f"for {policies.REFRESHES + 1} waiting requests a step",
    ):
        assert told in document, told
    assert all(re.search(rf"\| `{name}`", document) for name in POLICIES)
