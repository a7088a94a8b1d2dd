"""What a host's engines tell an observer: each fetch that ends or fails, unless it is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from server_support.collected_traces import INFO, CollectedTraces

from plimsoll_runtime.api.telemetry.host_traces import HostTraces
from plimsoll_runtime.api.telemetry.start_reporter import StartReporter
from plimsoll_runtime.api.telemetry.step_reporter import StepReporter
from plimsoll_runtime.api.telemetry.traced_requests import TracedRequests
from plimsoll_runtime.engine.protocol.messages import StepReason, TracedStep
from plimsoll_runtime.engine.step_tracing import StepTracing
from plimsoll_runtime.errors import SourceError
from plimsoll_runtime.residency.engines.processes import Processes
from plimsoll_runtime.residency.spec import ModelName, ModelSpec
from plimsoll_telemetry import attributes as names

NAME = ModelName("team", "m")
ABOUT = {names.NAMESPACE: "team", names.MODEL: "m"}


def observed() -> tuple[CollectedTraces, HostTraces]:
    tracer: Any = CollectedTraces()
    traces = HostTraces(StepTracing(100, 3.0), StepReporter(tracer, TracedRequests()), StartReporter(tracer))
    return tracer, traces


def fetch(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> CollectedTraces:
    async def fails(*_: object) -> None:
        raise error

    tracer, traces = observed()
    processes = Processes()
    processes.observe(traces)
    monkeypatch.setattr(processes, "_files", fails)
    with pytest.raises(type(error)):
        asyncio.run(processes.find(NAME, ModelSpec(revision="1", source="demo://x")))
    return tracer


def test_a_failed_fetch_is_a_trace_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    [[root, stage]] = fetch(SourceError("no such model"), monkeypatch).traces
    assert (root.name, stage.name) == ("fetch model", "fetch files")
    assert root.attributes == ABOUT
    assert root.error == stage.error == SourceError("").kind.value


def test_a_cancelled_fetch_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch(asyncio.CancelledError(), monkeypatch).traces == []


def test_the_steps_of_a_hosts_model_name_it() -> None:
    tracer, traces = observed()
    traces.step_traced(NAME, TracedStep(StepReason.SLOW, 0, 10, 1, 1), INFO)
    [[root]] = tracer.traces
    assert ABOUT.items() <= dict(root.attributes).items()
    assert root.attributes[names.REASON] == "slow"
