"""Idle time of a GPU in steady decoding, from the profiler's trace of the whole engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.utils.progress import silent

BEFORE, STEPS = 32, 64
TOKENS = 256
"""Length of each output: so long that no sequence ends before all have started and the steps have been measured."""
OWN = 16
"""Tokens of each prompt that are not shared."""
LEAST_GAP = 10.0
"""Microseconds. Shorter gaps are between two kernels of a graph, and not caused by the host."""
Span = tuple[float, float]
"""Begin and end in microseconds."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Number of sequences, and length of their prompts in tokens. `shared`: all prompts are equal except for their last
    OWN tokens, and cached once; block tables have the same length as without.
    """

    sequences: int
    prompt: int
    shared: bool = False


IDLE = Decoding(32, 128)
HOST = (Decoding(256, 128), Decoding(128, 32_000, shared=True))


def gaps(busy: Iterable[Span]) -> tuple[list[float], float]:
    """Return the durations of the gaps between spans, and the time from the first begin to the last end, in
    microseconds. Spans may overlap. Raises ValueError without spans, because such a trace has no device events.
    """
    ordered = sorted(busy)
    if not ordered:
        raise ValueError("the trace holds no work of a device")
    start, reached = ordered[0]
    found = []
    for begins, ends in ordered:
        if begins > reached:
            found.append(begins - reached)
        reached = max(reached, ends)
    return found, reached - start


def figures(busy: Iterable[Span], steps: int) -> dict[str, float]:
    """Return `idle`: the share of time without any work; `between_ms`: milliseconds per step in gaps of LEAST_GAP or
    more; and `step_ms`: milliseconds per step. Raises the errors of `gaps`.
    """
    found, whole = gaps(busy)
    longer = sum(gap for gap in found if gap >= LEAST_GAP)
    return {
        "idle": round(sum(found) / whole, 4) if whole > 0 else 0.0,
        "between_ms": round(longer / steps / 1e3, 4),
        "step_ms": round(whole / steps / 1e3, 4),
    }


def measure(model: str, work: Decoding) -> dict[str, Any]:
    """Return the `figures` of STEPS steps in which all requests decode, after their prefill and graph capture."""
    config = EngineConfig(
        model=model,
        dtype="bfloat16",
        max_sequences=work.sequences,
        max_model_len=work.prompt + TOKENS,
    )
    core = build_engine(config, silent)
    begin(core, work)
    _step(core, BEFORE)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        _step(core, STEPS)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    found = figures(device_spans(profiler.events()), STEPS)
    return {"sequences": work.sequences, "prompt": work.prompt, "steps": STEPS, **found}


def begin(core: EngineCore, work: Decoding) -> None:
    """Add the requests, and step until all of them decode; shared parts of prompts are computed once. Raises
    RuntimeError if some end before that.
    """
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    vocab = core.info.vocab_size
    same = [i % (vocab - 1) for i in range(work.prompt - OWN)]
    for number in range(work.sequences):
        own = [(number + i) % (vocab - 1) for i in range(work.prompt)]
        prompt = [*same, *own[:OWN]] if work.shared else own
        core.add(AddRequest(str(number), prompt, RequestContext(params, params.output_seed())))
    while core.has_work:
        if len(core.step().outputs) == work.sequences:
            return
    raise RuntimeError("the requests have ended before all of them decoded together")


def device_spans(events: Iterable[Any]) -> list[Span]:
    """Return the spans of kernels and copies in a torch profiler trace, in microseconds. Named ranges are left out."""
    on_device = [e for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    return [(float(e.time_range.start), float(e.time_range.end)) for e in on_device]


def _step(core: EngineCore, count: int) -> None:
    for _ in range(count):
        if not core.has_work:
            raise RuntimeError("the engine ran out of work before the measurement was over")
        core.step()
