"""The goals with their limits, judged by the results.

A goal whose benchmark did not run, or whose peer is missing, is not measured. It is never met by default.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from serving.systems import LLAMA_CPP, OPENVINO, SYSTEMS, TRANSFORMERS, US_HTTP


class Status(StrEnum):
    """Status of a goal."""

    MET = "met"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


class NotMeasured(Exception):
    """There is no figure to judge; the message says why."""


class Results:
    """Results of the benchmarks: rows of workloads by name, and results of other benchmarks by name."""

    def __init__(self, workloads: Sequence[Mapping[str, Any]], questions: Mapping[str, Mapping[str, Any]]) -> None:
        self._rows = {row["name"]: row for row in workloads}
        self._questions = questions

    def row(self, workload: str) -> Mapping[str, Any]:
        """Return a workload's row. Raises NotMeasured."""
        if workload not in self._rows:
            raise NotMeasured(f"{workload} did not run")
        return self._rows[workload]

    def question(self, name: str) -> Mapping[str, Any]:
        """Return a benchmark's result. Raises NotMeasured."""
        if name not in self._questions:
            raise NotMeasured(f"{name} did not run")
        return self._questions[name]

    def ratio(self, workload: str, peer: str) -> float:
        """Return Plimsoll's speed over the peer's, the median of rounds. Raises NotMeasured."""
        row = self.row(workload)
        if peer in row["absent"]:
            raise NotMeasured(f"{SYSTEMS[peer].title} {row['absent'][peer]}")
        return float(row["ratios"][peer])

    def against_best(self, workload: str) -> float:
        """Return the ratio to the fastest peer. Raises NotMeasured if a peer is missing, because it may be the
        fastest.
        """
        row = self.row(workload)
        return min(self.ratio(workload, peer) for peer in (*row["ratios"], *row["absent"]))

    def over_rounds(self, workload: str, figure: Callable[[Mapping[str, Any]], float]) -> float:
        """Return the median over rounds of `figure(round)`. Raises NotMeasured if a round lacks its inputs."""
        row = self.row(workload)
        try:
            return statistics.median(figure(r) for r in row["rounds"])
        except KeyError as missing:
            raise NotMeasured(f"{workload} has no result for {missing.args[0]} in some round") from missing


@dataclass(frozen=True, slots=True)
class Goal:
    """`value(results)` must be at least `limit` or, with `most`, at most `limit`."""

    work: str
    wanted: str
    limit: float
    value: Callable[[Results], float]
    most: bool = False
    form: str = "{:.2f}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal with its status; `reason` says why there is no value."""

    goal: Goal
    status: Status
    value: float | None = None
    reason: str = ""

    @property
    def figure(self) -> str:
        """The value as text, or the reason if there is none."""
        return self.reason if self.value is None else self.goal.form.format(self.value)


def judge(results: Results, wanted: Sequence[Goal]) -> list[Verdict]:
    """Judge every wanted goal, in order."""
    return [_judge(goal, results) for goal in wanted]


def record(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict for the results file."""
    return {
        "work": verdict.goal.work,
        "goal": verdict.goal.wanted,
        "status": str(verdict.status),
        "value": verdict.value,
        "figure": verdict.figure,
    }


def _judge(goal: Goal, results: Results) -> Verdict:
    try:
        value = goal.value(results)
    except NotMeasured as why:
        return Verdict(goal, Status.NOT_MEASURED, reason=str(why))
    met = value <= goal.limit if goal.most else value >= goal.limit
    return Verdict(goal, Status.MET if met else Status.MISSED, value)


def _burst_p99_of_bound(results: Results) -> float:
    """Return the p99 of the first burst's times to first token, over the time of all its prompts at the matrix rate."""
    return results.over_rounds("W4", lambda r: float(_burst(r, US_HTTP)["p99"] / r["burst_bound_ms"]))


def _burst_p50_of_openvino(results: Results) -> float:
    results.ratio("W4", OPENVINO)
    return results.over_rounds("W4", lambda r: float(_burst(r, US_HTTP)["p50"] / _burst(r, OPENVINO)["p50"]))


def _burst(round_: Mapping[str, Any], system: str) -> Mapping[str, float]:
    figures: Mapping[str, float] = round_["systems"][system]["ttft_burst_ms"]
    return figures


def _later_p99_seconds(results: Results) -> float:
    return results.over_rounds("W4", lambda r: float(r["systems"][US_HTTP]["ttft_later_ms"]["p99"] / 1000))


def _itl_p99_of_median(results: Results) -> float:
    def figure(round_: Mapping[str, Any]) -> float:
        gaps = round_["systems"][US_HTTP]["itl_ms"]
        return float(gaps["p99"] / gaps["p50"])

    return results.over_rounds("W4", figure)


def _figure(question: str, name: str) -> Callable[[Results], float]:
    return lambda results: float(results.question(question)[name])


def _step_overhead(results: Results) -> float:
    """Return the milliseconds of overhead of greedy steps, because the workloads are greedy."""
    return float(results.question("overhead")["ms"]["greedy"]["overhead"])


def _offline(model: str, figure: str) -> Callable[[Results], float]:
    return lambda results: float(results.question("offline")["models"][model][figure])


def _batch(model: str, figure: str) -> Callable[[Results], float]:
    return lambda results: float(results.question("batch")["models"][model][figure])


def _long_batch(figure: str) -> Callable[[Results], float]:
    return lambda results: float(results.question("batch")["long"][figure])


def _worst_offline(figure: str) -> Callable[[Results], float]:
    return lambda results: max(float(r[figure]) for r in results.question("offline")["models"].values())


_Value = Callable[[Results], float]


def _gpu(question: str, figure: str) -> _Value:
    """Return a function that reads a figure of one benchmark of `gpu.run`. It raises NotMeasured if that benchmark did
    not run.
    """

    def value(results: Results) -> float:
        found = results.question("gpu")
        if question not in found:
            raise NotMeasured(f"{question} did not run")
        return float(found[question][figure])

    return value


def _gpu_rows(question: str, figure: str, pick: Callable[[Iterable[float]], float], **of: object) -> _Value:
    """Return a function that reads a figure of a `gpu.run` benchmark with rows: the `pick` (min or max) over the rows
    whose columns equal `of`. It raises NotMeasured without such rows.
    """

    def value(results: Results) -> float:
        rows = results.question("gpu").get(question)
        if rows is None:
            raise NotMeasured(f"{question} did not run")
        found = [float(row[figure]) for row in rows if all(row[name] == each for name, each in of.items())]
        if not found:
            raise NotMeasured(f"{question} has no row of {of}")
        return pick(found)

    return value


def _beside_batching(results: Results) -> float:
    """Return Plimsoll's speed over that of Transformers' continuous batching. Raises NotMeasured without it."""
    found = results.question("gpu").get("mixed")
    if found is None:
        raise NotMeasured("mixed did not run")
    if found["absent"]:
        raise NotMeasured(found["absent"])
    return float(found["ratio"])


def _ended(results: Results) -> float:
    """Return 1 for an engine that ended under load, else 0. Raises NotMeasured if less than GPU_FULL of the cache was
    used.
    """
    use = _gpu("memory", "kv_use")(results)
    if use < GPU_FULL:
        raise NotMeasured(f"the cache was in use for {use:.1%}")
    return float(bool(results.question("gpu")["memory"]["ended"]))


TIMES, SHARE = "{:.2f}x", "{:.1%}"


def _product(rows: int, wanted: str, *others: str) -> Goal:
    """Return the goal that a product of `rows` rows with the selected instruction set reaches 0.9 times the speed of
    each of `others`.
    """

    def value(results: Results) -> float:
        found = results.question("instructions")
        case = next((case for case in found["cases"] if case["rows"] == rows), None)
        if case is None or found["used"] is None:
            raise NotMeasured(f"no kernels of ours multiplied {rows} rows")
        ratios = [case["bfloat16"][found["used"]][other] for other in others]
        if None in ratios:
            raise NotMeasured("oneDNN packs no bfloat16 on this processor")
        return min(map(float, ratios))

    return Goal("instructions", f"a product of {rows} rows: 0.9x {wanted}", 0.9, value, form=TIMES)


def _goals(*, w2: float, d16: float) -> tuple[Goal, ...]:
    """Return goals of a CPU: W2's share of the roofline and D16 over llama.cpp depend on its kind."""
    return (
        Goal("W1", "1.2x llama.cpp", 1.2, lambda r: r.ratio("W1", LLAMA_CPP), form=TIMES),
        Goal("W1", "60 % of the roofline", 0.60, lambda r: float(r.row("W1")["of_roofline"]), form=SHARE),
        Goal("W2", "1.1x OpenVINO GenAI", 1.1, lambda r: r.ratio("W2", OPENVINO), form=TIMES),
        Goal("W2", f"{100 * w2:g} % of the roofline", w2, lambda r: float(r.row("W2")["of_roofline"]), form=SHARE),
        Goal("W3", "5x the best peer", 5.0, lambda r: r.against_best("W3"), form=TIMES),
        Goal("W3p", "1x the best peer, all primed", 1.0, lambda r: r.against_best("W3p"), form=TIMES),
        Goal("W4", "1.1x OpenVINO GenAI in process", 1.1, lambda r: r.ratio("W4", OPENVINO), form=TIMES),
        Goal("W4", "first burst: TTFT p99 at most 1.15x its prompts' bound", 1.15, _burst_p99_of_bound, True, TIMES),
        Goal("W4", "first burst: TTFT p50 at most OpenVINO GenAI's", 1.0, _burst_p50_of_openvino, True, TIMES),
        Goal("W4", "afterwards: TTFT p99 at most 1 s", 1.0, _later_p99_seconds, True, "{:.2f} s"),
        Goal("W4", "ITL p99 at most 3x its median", 3.0, _itl_p99_of_median, True, TIMES),
        Goal("D1", "1x llama.cpp", 1.0, lambda r: r.ratio("D1", LLAMA_CPP), form=TIMES),
        Goal("D16", f"{d16:g}x llama.cpp", d16, lambda r: r.ratio("D16", LLAMA_CPP), form=TIMES),
        Goal("W6", "1.2x llama.cpp", 1.2, lambda r: r.ratio("W6", LLAMA_CPP), form=TIMES),
        Goal("W6", "55 % of the roofline", 0.55, lambda r: float(r.row("W6")["of_roofline"]), form=SHARE),
        Goal("overhead", "a step of 64 at most 1 ms besides the model", 1.0, _step_overhead, True, "{:.3f} ms"),
        Goal("batch", '"small": 1.05x 64 HTTP clients', 1.05, _batch("small", "ratio"), form=TIMES),
        Goal("batch", '"small": 85 % of the roofline', 0.85, _batch("small", "of_roofline"), form=SHARE),
        Goal("batch", '"tiny": 3x 8 HTTP clients', 3.0, _batch("tiny", "ratio"), form=TIMES),
        Goal("batch", "memory: ten times the rows add at most 5 %", 0.05, _long_batch("memory_growth"), True, SHARE),
        Goal("offline", '"small": 1.2x 64 HTTP clients', 1.2, _offline("small", "ratio"), form=TIMES),
        Goal("offline", '"small": 65 % of the roofline', 0.65, _offline("small", "of_roofline"), form=SHARE),
        Goal("offline", '"tiny": 3x 8 HTTP clients', 3.0, _offline("tiny", "ratio"), form=TIMES),
        Goal("offline", "10,000 take 5x as long as 2,000, within 10 %", 1.1, _worst_offline("linearity"), True, TIMES),
        Goal("offline", "memory: the peak grows at most 5 %", 0.05, _worst_offline("memory_growth"), True, SHARE),
        Goal("prefix_cost", "at most 1 % without hits", 0.01, _figure("prefix_cost", "cost"), True, "{:+.2%}"),
        Goal("constrained", "at most 3 %, half under schemas", 0.03, _figure("constrained", "cost"), True, "{:+.2%}"),
        Goal("kv_waste", "at most 4 %", 0.04, _figure("kv_waste", "waste"), True, "{:.2%}"),
        Goal("startup", "first token within 5 s", 5.0, _figure("startup", "first_token_seconds"), True, "{:.2f} s"),
        Goal("loading", "the peak at most 1.15x what is kept", 1.15, _figure("loading", "worst"), True, TIMES),
        _product(16, "oneDNN and the reading of its weight", "over_onednn", "over_memory"),
        _product(64, "oneDNN", "over_onednn"),
        _product(512, "oneDNN", "over_onednn"),
    )


GOALS = _goals(w2=0.65, d16=1.0)

OF_KIND: Mapping[str, tuple[Goal, ...]] = {
    # Arithmetic is ten times cheaper there: the roofline is higher, and other work weighs more.
    "amx": _goals(w2=0.50, d16=4.5),
}
"""Goals by kind of processor (see provenance) that differ from GOALS."""


def of_kind(kind: str) -> tuple[Goal, ...]:
    """Return the goals for a kind of processor."""
    return OF_KIND.get(kind, GOALS)


GPU_DECODES = ("decode 1, context 131072", "decode 64, context 8192", "decode 256, context 1024")
"""Cases of `gpu.attention` that have a goal: their keys and values exceed the on-chip caches of every GPU."""
GPU_FULL = 0.98
"""Minimum share of the cache's blocks in use. Below it the goal of a full cache counts as not measured."""
MS, SECONDS = "{:.3f} ms", "{:.2f} s"


def _paged_decode(case: str) -> Goal:
    value = _gpu_rows("attention", "of_bandwidth", min, name=case)
    return Goal("attention", f"{case}: 90 % of the copy's bandwidth", 0.90, value, form=SHARE)


def _batch_decode(sequences: int, context: int) -> Goal:
    value = _gpu_rows("batches", "of_roofline", min, sequences=sequences, context=context)
    return Goal("decode", f"batch {sequences} x {context}: 80 % of the roofline", 0.80, value, form=SHARE)


def _between(sequences: int, prompt: int, most: float) -> Goal:
    wanted = f"{sequences} x {prompt}: at most {most:g} ms between two steps"
    return Goal(
        "host", wanted, most, _gpu_rows("host", "between_ms", max, sequences=sequences, prompt=prompt), True, MS
    )


def _choosing(rows: int, figure: str) -> _Value:
    """Return a function that reads the highest `figure` over all sampling parameters, for batches of `rows` rows."""
    return _gpu_rows("sampling", figure, max, rows=rows)


GPU_GOALS = (
    Goal("decode", "batch 1: 85 % of the copy's bandwidth", 0.85, _gpu("decode", "of_bandwidth"), form=SHARE),
    _batch_decode(64, 2048),
    _batch_decode(256, 1024),
    *(_paged_decode(case) for case in GPU_DECODES),
    Goal("prefill", "8192 tokens: 70 % of the product's rate", 0.70, _gpu("prefill", "of_rate"), form=SHARE),
    Goal("chunks", "8192 in steps of 2048: 65 % of the product's rate", 0.65, _gpu("chunks", "of_rate"), form=SHARE),
    Goal("idle", "less than 3 % in steady decoding", 0.03, _gpu("idle", "idle"), True, SHARE),
    Goal("host", "32 x 128: at most 0.15 ms between two steps", 0.15, _gpu("idle", "between_ms"), True, MS),
    _between(256, 128, 0.5),
    _between(128, 32_000, 1.0),
    Goal("sampling", "1 row of 152k: at most 60 us", 60.0, _choosing(1, "microseconds"), True, "{:.1f} us"),
    Goal("sampling", "256 rows of 152k: at most 1.5x reading them", 1.5, _choosing(256, "of_reading"), True, TIMES),
    Goal("mixed", "256 requests: 3x Transformers' continuous batching", 3.0, _beside_batching, form=TIMES),
    Goal("mixed", "75 % of the roofline", 0.75, _gpu("mixed", "of_roofline"), form=SHARE),
    Goal("users", "64 streaming: 0.93x offline", 0.93, _gpu("users", "of_offline"), form=TIMES),
    Goal("users", "TTFT p99 at most 1.2x the burst's bound", 1.2, _gpu("users", "ttft_p99_of_bound"), True, TIMES),
    Goal("users", "ITL p99 at most 2x its median", 2.0, _gpu("users", "itl_p99_of_median"), True, TIMES),
    Goal("sleep", "8B wakes at 80 % of the copy of pinned memory", 0.80, _gpu("sleep", "of_pinned"), form=SHARE),
    Goal("memory", "within 2 % of what was predicted", 0.02, _gpu("memory", "error"), True, SHARE),
    Goal("memory", "5 minutes on a full cache: 0 engines that ended", 0.0, _ended, True, "{:.0f}"),
    Goal("start", '"medium": first token within 8 s', 8.0, _gpu("start", "cold_first_token_seconds"), True, SECONDS),
    Goal("start", "the second time within 6 s", 6.0, _gpu("start", "first_token_seconds"), True, SECONDS),
    Goal("W2", "3x Transformers", 3.0, lambda r: r.ratio("W2", TRANSFORMERS), form=TIMES),
)
