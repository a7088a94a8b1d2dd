"""Runs a profile from its options to its report, with the machine and the versions of the figures."""

from __future__ import annotations

import gc
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
import torch

from plimsoll_kernels.cpu.library import speed
from plimsoll_kernels.cpu.speed import Speed
from plimsoll_kernels.cpu.threads import thread_count
from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import AddRequest
from plimsoll_runtime.execution.attention.backends.cpu import CpuBackend
from plimsoll_runtime.execution.device.gpus import cpu_name
from plimsoll_runtime.execution.device.peaks import Peaks, measure
from plimsoll_runtime.execution.device.select import choose
from plimsoll_runtime.execution.device.stored_peaks import store_peaks
from plimsoll_runtime.profiling.recorder import ServerPath, StepRecord, Watch, record_steps
from plimsoll_runtime.profiling.summary import SERVER_PHASES, Report, summarise
from plimsoll_runtime.profiling.trace import with_torch_events, write_trace
from plimsoll_runtime.profiling.workload import Workload, prompt_tokens
from plimsoll_runtime.text.tokenizer import Tokenizer, load_tokenizer
from plimsoll_runtime.utils.progress import Progress
from plimsoll_runtime.version import VERSION
from plimsoll_runtime.weights.sources.resolve import resolve


def provenance(device: torch.device) -> dict[str, str | int]:
    """Return hardware, versions, command and date. The GPU is the one that computed."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(["plimsoll", *sys.argv[1:]]),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name() if device.type == "cuda" else "none",
        "python": platform.python_version(),
        "torch": version("torch"),
        "plimsoll": VERSION,
    }


WARM_OUTPUT = 3
TRACED_OUTPUT = 16
"""Tokens of each output in the traced run, because torch's profiler keeps every op of every step in memory."""


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """The engine to load, its workload, and the files to write; None writes none."""

    engine: EngineConfig
    workload: Workload
    trace: Path | None = None
    report: Path | None = None


def run_profile(options: ProfileOptions, progress: Progress) -> Report:
    """Load the engine, probe the machine, warm up, measure, probe again, and trace if requested. Writes the requested
    files.

    Steps do not overlap, so that each phase can be measured separately.

    Raises the errors of `build_engine`, and UsageError for a workload that the loaded engine cannot hold.
    """
    watch = Watch(choose(options.engine.device))
    core = build_engine(replace(options.engine, overlap=False), progress, watch)
    options.workload.check_fits(core.info)
    engine = options.engine
    files = resolve(engine.model, engine.revision, trust_remote_code=engine.trust_remote_code)
    tokenizer = load_tokenizer(files)
    session = _Session(core, watch, tokenizer, options.workload)
    progress("profile", 0.0)
    device, dtype = torch.device(core.info.device), watch.decoder.dtype
    machine = measure(device, dtype)
    session.serve(longest_output=WARM_OUTPUT)
    gc.collect()
    gc.freeze()  # like the engine process
    try:
        requests, records = session.serve()
    finally:
        gc.unfreeze()
    machine = machine.best_of(measure(device, dtype))
    store_peaks(device, dtype, machine)
    if options.trace is not None:
        write_trace(options.trace, session.trace())
    progress("profile", 1.0)
    kernels = speed(dtype) if core.info.attention_backend == CpuBackend.name else None
    report = _report(options.workload, core, requests, records, machine, kernels)
    if options.report is not None:
        options.report.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return report


class _Session:
    """An engine that serves one workload repeatedly, each time with an empty prefix cache."""

    def __init__(self, core: EngineCore, watch: Watch, tokenizer: Tokenizer, workload: Workload) -> None:
        self._core = core
        self._watch = watch
        self._tokenizer = tokenizer
        self._workload = workload

    def serve(self, *, longest_output: int | None = None) -> tuple[list[AddRequest], list[StepRecord]]:
        """Serve the workload and return its requests and the record of each step."""
        requests = self._workload.requests(self._core.info.vocab_size, longest_output=longest_output)
        self._core.reset_prefix_cache()
        server = ServerPath(requests, self._tokenizer, self._watch.timeline)
        return requests, record_steps(self._core, self._watch, requests, server)

    def trace(self) -> list[dict[str, object]]:
        """Return the events of a run with short outputs under torch's profiler."""
        device = torch.device(self._core.info.device)
        self._watch.show_ranges(True)
        try:
            return with_torch_events(lambda: self.serve(longest_output=TRACED_OUTPUT)[1], device)
        finally:
            self._watch.show_ranges(False)


def _report(
    workload: Workload,
    core: EngineCore,
    requests: Sequence[AddRequest],
    records: Sequence[StepRecord],
    machine: Peaks,
    kernels: Speed | None,
) -> Report:
    info = core.info
    return Report(
        model=info.model,
        architecture=info.architecture,
        dtype=info.dtype,
        device=info.device,
        attention_backend=info.attention_backend,
        threads=thread_count(),
        workload=workload.name,
        batch=workload.batch,
        prompt_len=workload.prompt_len,
        output_len=workload.output_len,
        prompt_tokens=prompt_tokens(requests),
        output_tokens=sum(r.context.params.max_tokens or 0 for r in requests),
        seconds=sum(s.seconds for r in records for s in r.spans if s.phase not in SERVER_PHASES),
        bandwidth=machine.bandwidth,
        rate=machine.rate,
        kernels=kernels,
        steps=summarise(records, machine),
        provenance=provenance(torch.device(info.device)),
    )
