"""Writes traces in Chrome's format (for Perfetto): steps and phases, server work, ops, and torch's own events.

The native decoder measures only sums of times, so the ops of a step are drawn end to end from the start of its forward
pass. Times are microseconds; with torch events, all times use torch's clock.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from plimsoll_runtime.engine.step_timing import StepPhase
from plimsoll_runtime.profiling.recorder import StepRecord
from plimsoll_runtime.profiling.summary import FORWARD_OPS, SERVER_PHASES

Event = dict[str, Any]

PROCESS = 10**9
"""Process id of our tracks: larger than every process id and device number, which torch's events use."""
STEPS, SERVER, OPS = 1, 2, 3
TRACKS = {STEPS: "engine: steps and their phases", SERVER: "server path", OPS: "ops of the forward pass, end to end"}
ANCHOR, ANCHORS = "plimsoll::anchor", 64


def timeline_events(records: Sequence[StepRecord], *, zero_ns: int, zero_us: float = 0.0) -> list[Event]:
    """Return the events of our tracks. `zero_ns` on the timeline's clock corresponds to `zero_us` in the trace."""

    def span(name: str, track: int, start_ns: float, end_ns: float, **args: Any) -> Event:
        start = zero_us + (start_ns - zero_ns) / 1e3
        duration = (end_ns - start_ns) / 1e3
        return {
            **{"ph": "X", "cat": "plimsoll", "name": name, "pid": PROCESS, "tid": track},
            **{"ts": start, "dur": duration, "args": args},
        }

    events = list(_names())
    for number, record in enumerate(records, 1):
        engine = [s for s in record.spans if s.phase not in SERVER_PHASES]
        kind = "prefill" if record.prefill else "decode"
        about = {"tokens": record.tokens, "sequences": record.sequences}
        events.append(span(f"{kind} {number}", STEPS, engine[0].start_ns, engine[-1].end_ns, **about))
        for phase in record.spans:
            track = SERVER if phase.phase in SERVER_PHASES else STEPS
            events.append(span(phase.phase.name.lower(), track, phase.start_ns, phase.end_ns))
            if phase.phase is StepPhase.FORWARD:
                at = float(phase.start_ns)
                for op in filter(record.costs.__contains__, FORWARD_OPS):
                    seconds, cost = record.op_seconds.get(op, 0.0), record.costs[op]
                    if seconds:
                        events.append(span(op, OPS, at, at + seconds * 1e9, bytes=cost.bytes, flops=cost.flops))
                        at += seconds * 1e9
    return events


def with_torch_events(run: Callable[[], Sequence[StepRecord]], device: torch.device) -> list[Event]:
    """Call `run`, which computes on `device`, under torch's profiler. Return torch's events and ours on one clock."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        before_ns, after_ns = [], []
        for _ in range(ANCHORS):
            before_ns.append(perf_counter_ns())
            with record_function(ANCHOR):
                pass
            after_ns.append(perf_counter_ns())
        records = run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "torch.json"
        profiler.export_chrome_trace(str(path))
        theirs: list[Event] = json.loads(path.read_text())["traceEvents"]
    anchors = sorted(
        (e["ts"], e["dur"]) for e in theirs if e.get("name") == ANCHOR and e.get("cat") == "user_annotation"
    )
    offset_us = _offset_us(anchors, before_ns, after_ns)
    return [*theirs, *timeline_events(records, zero_ns=0, zero_us=offset_us)]


def _offset_us(anchors: Sequence[tuple[float, float]], before_ns: Sequence[int], after_ns: Sequence[int]) -> float:
    """Return torch's clock minus ours. `anchors` are start and duration in microseconds on torch's clock.

    Our clock was read before and after each anchor, so each anchor bounds the offset from both sides. A thread that
    was preempted during an anchor only widens that anchor's bounds.
    """
    most = min(start - read / 1000 for (start, _), read in zip(anchors, before_ns, strict=True))
    least = max(start + duration - read / 1000 for (start, duration), read in zip(anchors, after_ns, strict=True))
    return (most + least) / 2


def write_trace(path: Path, events: Sequence[Event]) -> None:
    """Write a file that chrome://tracing and ui.perfetto.dev can open."""
    path.write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))


def _names() -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": PROCESS, "tid": 0, "args": {"name": "plimsoll"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": PROCESS, "tid": 0, "args": {"sort_index": -1}}
    for track, name in TRACKS.items():
        yield {"ph": "M", "name": "thread_name", "pid": PROCESS, "tid": track, "args": {"name": name}}
