"""The share of steady decoding in which a GPU does nothing, from the profiler's trace of the whole engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from plimsoll_runtime.driver.build import build_engine
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.messages import AddRequest
from plimsoll_runtime.engine.params import SamplingParams

PROMPT, BEFORE, STEPS = 128, 32, 64
Span = tuple[float, float]
"""When something began and ended."""


def idle_share(busy: Iterable[Span]) -> float:
    """Of the time from the first beginning to the last end, that in which nothing runs; spans may overlap.

    Raises ValueError where there is nothing: a trace without the device's work says nothing about it.
    """
    ordered = sorted(busy)
    if not ordered:
        raise ValueError("the trace holds no work of a device")
    start, reached = ordered[0]
    idle = 0.0
    for begins, ends in ordered:
        idle += max(0.0, begins - reached)
        reached = max(reached, ends)
    return idle / (reached - start) if reached > start else 0.0


def measure(model: str, sequences: int) -> dict[str, Any]:
    """So many requests that decode together, after all their prompts were computed and the graphs captured."""
    core = build_engine(EngineConfig(model=model, dtype="bfloat16"), lambda stage, fraction: None)
    params = SamplingParams(temperature=0.0, max_tokens=BEFORE + 2 * STEPS, ignore_eos=True)
    for number in range(sequences):
        core.add(AddRequest(str(number), [(number + i) % 1000 for i in range(PROMPT)], params))
    _step(core, BEFORE)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        _step(core, STEPS)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return {"sequences": sequences, "steps": STEPS, "idle": round(idle_share(device_spans(profiler.events())), 4)}


def device_spans(events: Iterable[Any]) -> list[Span]:
    """Kernels and copies of torch's profiler, in microseconds; ranges that somebody named are none."""
    on_device = [e for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    return [(float(e.time_range.start), float(e.time_range.end)) for e in on_device]


def _step(core: EngineCore, count: int) -> None:
    for _ in range(count):
        if not core.has_work:
            raise RuntimeError("the engine ran out of work before the measurement was over")
        core.step()
