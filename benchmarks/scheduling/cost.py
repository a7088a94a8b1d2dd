"""The duration of an engine step as a function of its work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from typing import NamedTuple

import numpy as np

from plimsoll_runtime.engine.protocol.plan import StepPlan


class StepWork(NamedTuple):
    """Quantities that determine a step's duration. `context_tokens` counts tokens read by decodes, `attention_pairs`
    pairs of tokens in prompts.
    """

    steps: int
    prefill_tokens: int
    decode_rows: int
    context_tokens: int
    attention_pairs: int


def work_of(plan: StepPlan) -> StepWork:
    """Return the work of a plan; a sequence with one token is a decode."""
    prefill = rows = context = pairs = 0
    for sequence in plan.sequences:
        count, start = len(sequence.token_ids), sequence.start
        if count == 1:
            rows += 1
            context += start + 1
        else:
            prefill += count
            pairs += count * start + count * (count + 1) // 2
    return StepWork(1, prefill, rows, context, pairs)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds per unit of a step's work; the fields are in the order of `StepWork`'s."""

    step: float
    prefill_token: float
    decode_row: float
    context_token: float
    attention_pair: float

    def seconds(self, work: StepWork) -> float:
        """Return the duration of a step."""
        return float(sum(unit * count for unit, count in zip(astuple(self), work, strict=True)))

    def as_dict(self) -> dict[str, float]:
        """Return the model for a file."""
        return asdict(self)


def fit(samples: Sequence[tuple[StepWork, float]]) -> CostModel:
    """Return the cost model with the least relative error over measured steps; no cost is negative. Raises ValueError
    for fewer samples than units.
    """
    units = len(StepWork._fields)
    if len(samples) < units:
        raise ValueError(f"{len(samples)} steps are too few to tell {units} costs apart")
    seconds = np.array([seconds for _, seconds in samples])
    relative = np.array([work for work, _ in samples], dtype=float) / seconds[:, None]
    used = list(range(units))
    while True:
        found, *_ = np.linalg.lstsq(relative[:, used], np.ones(len(samples)), rcond=None)
        if (found >= 0).all():
            costs = dict(zip(used, found, strict=True))
            return CostModel(*(float(costs.get(unit, 0.0)) for unit in range(units)))
        used.pop(int(np.argmin(found)))


def error(model: CostModel, samples: Sequence[tuple[StepWork, float]]) -> float:
    """Return the median relative error over measured steps."""
    return float(np.median([abs(model.seconds(work) - seconds) / seconds for work, seconds in samples]))
