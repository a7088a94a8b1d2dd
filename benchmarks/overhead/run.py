"""`python -m overhead.run`: scheduler, batch building, sampling and commit, for steps of 64 sequences on one core.

The model is "tiny", so that its arithmetic hides nothing; the time in the model itself is left out. Steps do not
overlap, so that each phase is measured separately.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from typing import Any

import msgspec

import question
from options import Options
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.step_timing import StepPhase
from serving import quiet
from tables import Sheet
from tiny_engine import start_decoding, tiny_engine

BATCH, PROMPT, STEPS = 64, 32, 256
COUNTED = (StepPhase.SCHEDULE, StepPhase.INPUTS, StepPhase.SAMPLE, StepPhase.COMMIT)
MODEL_PHASES = (StepPhase.FORWARD, StepPhase.HEAD)


def measure(chosen: Options) -> dict[str, Any]:
    """Return milliseconds of each phase per step, greedy and with sampling, as medians of the rounds' medians."""
    engine = tiny_engine(BATCH)
    count = max(8, round(STEPS * chosen.scale))
    names = itertools.count()
    kinds = {
        "greedy": SamplingParams(temperature=0.0),
        "sampled": SamplingParams(temperature=0.8, top_p=0.95, top_k=40),
    }
    rounds: list[dict[str, Any]] = []
    for number in range(chosen.rounds):
        busy = quiet.cores_in_use()
        figures = {kind: _round(engine, params, count, number, names) for kind, params in kinds.items()}
        rounds.append({**figures, "cores_used_by_others": round(busy, 2)})
    medians = {kind: {p: statistics.median(r[kind][p] for r in rounds) for p in rounds[0][kind]} for kind in kinds}
    return {"batch": BATCH, "steps": count, "ms": medians, "rounds": rounds}


def _round(
    engine: EngineCore, params: SamplingParams, count: int, number: int, names: itertools.count[int]
) -> dict[str, float]:
    """Return the median milliseconds of each phase, and of the sum of the counted ones (`overhead`), over `count` steps
    in which every sequence decodes.
    """
    wanted = msgspec.structs.replace(params, max_tokens=count + 2, ignore_eos=True)
    start_decoding(engine, BATCH, PROMPT, wanted, names, seed=number)
    before, steps = engine.stats.phase_seconds, list[tuple[float, ...]]()
    for _ in range(count):
        engine.step()
        now = engine.stats.phase_seconds
        steps.append(tuple(b - a for a, b in zip(before, now, strict=True)))
        before = now
    while engine.has_work:
        engine.step()
    phases = {p.name.lower(): statistics.median(1000 * step[p] for step in steps) for p in (*COUNTED, *MODEL_PHASES)}
    totals = sorted(1000 * sum(step[p] for p in COUNTED) for step in steps)
    return {**phases, "overhead": statistics.median(totals), "overhead_p99": totals[len(totals) * 99 // 100]}


def table(result: dict[str, Any]) -> Sheet:
    """Return a row for greedy decoding and one for sampling."""
    columns = [*(p.name.lower() for p in COUNTED), "overhead", "overhead_p99"]
    rows = [[kind, *(f"{figures[c]:.3f}" for c in columns)] for kind, figures in result["ms"].items()]
    title = f"Milliseconds a step besides the model, {result['batch']} sequences, one core"
    return Sheet(title, ["decoding", *(c.replace("_", " ") for c in columns)], rows)


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
