"""The counters of a run are the figures of its profile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.work.model import Work
from plimsoll_runtime.execution.device.peaks import Peaks
from plimsoll_runtime.models.ops.cost import total
from plimsoll_runtime.profiling.recorder import Watch, record_steps
from plimsoll_runtime.profiling.summary import ALL, summarise
from plimsoll_runtime.profiling.workload import Workload
from plimsoll_runtime.utils.progress import Transfer

PEAKS = Peaks(bandwidth=1e10, rate=1e11)


def no_progress(stage: str, fraction: float, transfer: Transfer | None = None) -> None:
    """Ignore the progress of a start."""


def counted(core: EngineCore) -> Mapping[str, Work]:
    assert core.info.work is not None
    return core.info.work.work(core.stats.amounts)


@pytest.mark.parametrize("name", ["uniform", "mixed", "shared-prefix"])
def test_utilisation_is_that_of_the_profile(tiny_model: Path, name: str) -> None:
    """Operations and bytes per second, divided by the same peaks, over the same seconds of the same steps."""
    config = EngineConfig(model=str(tiny_model), overlap=False, max_sequences=4, max_batch_tokens=64, device="cpu")
    watch = Watch(torch.device("cpu"))
    core = build_engine(config, no_progress, watch)
    requests = Workload(name, 4, 32, 16).requests(core.info.vocab_size)
    before = counted(core)
    records = record_steps(core, watch, requests, None)
    after = counted(core)
    flops = sum(after[kind].flops - before[kind].flops for kind in after)
    moved = sum(after[kind].bytes - before[kind].bytes for kind in after)
    walked = total(cost for record in records for cost in record.costs.values())
    assert (flops, moved) == (walked.flops, walked.bytes)
    figures = summarise(records, PEAKS)
    shown = [(one.steps, op) for one in figures for op in one.ops if op.op == ALL]
    seconds = sum(one.steps * one.seconds for one in figures)
    by_profile = sum(steps * op.flops for steps, op in shown) / seconds / PEAKS.rate
    assert flops / seconds / PEAKS.rate == pytest.approx(by_profile, rel=0.03)
    by_profile = sum(steps * op.bytes for steps, op in shown) / seconds / PEAKS.bandwidth
    assert moved / seconds / PEAKS.bandwidth == pytest.approx(by_profile, rel=0.03)
