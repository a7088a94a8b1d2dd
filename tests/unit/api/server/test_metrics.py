"""Metrics of a server: their port, their labels, their formats, and the engine's process."""

from __future__ import annotations

import os
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from plimsoll_runtime.api.server.config import TracingOptions
from plimsoll_runtime.api.telemetry.engine_process import engine_processes
from plimsoll_runtime.api.telemetry.metrics_key import metrics_key
from plimsoll_runtime.api.telemetry.request_spans import RequestSpans
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_telemetry.attributes import MODEL, NAMESPACE, REQUEST_MODEL
from plimsoll_telemetry.tracer import MakeSpans, Tracer

BODY = {"model": "alias", "prompt": "Hi"}
KEY = ModelName("team", "deployed")
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
EXEMPLARY = {
    "plimsoll_time_to_first_token_seconds",
    "plimsoll_inter_token_seconds",
    "plimsoll_mean_token_seconds",
    "plimsoll_request_seconds",
}


async def test_on_a_port_of_their_own_they_are_there_alone_and_need_no_key(run_server: Any) -> None:
    async with run_server(metrics_port=0, api_keys=("secret",)) as running, running.http() as http:
        assert (await http.get("/metrics")).status_code == 404
        async with httpx.AsyncClient(base_url=running.metrics_url) as scraper:
            found = await scraper.get("/metrics")
            assert (found.status_code, found.headers["content-type"]) == (
                200,
                "text/plain; version=0.0.4; charset=utf-8",
            )
            assert "plimsoll_ready{" in found.text
            assert 'plimsoll_build_info{component="runtime",version="' in found.text
            assert "process_cpu_seconds_total " in found.text
            assert "_created" not in found.text
            for path in ("/", "/health", "/v1/models", "/metrics/", "/metricsx", "/openapi.json"):
                other = await scraper.get(path, headers={"Authorization": "Bearer secret"})
                assert (other.status_code, other.text) == (404, "This port serves GET /metrics only.\n"), path
                assert other.headers["content-type"].startswith("text/plain")
            posted = await scraper.post("/metrics")
            assert posted.status_code == 405


async def test_labels_are_those_of_the_deployment(run_server: Any) -> None:
    async with run_server(deployment=KEY) as running, running.http() as http:
        await http.post("/v1/completions", json=BODY)
        await http.post("/v1/completions", json=BODY | {"model": "unknown"})
        await http.post("/tokenize", json=BODY)
        lines = (await http.get("/metrics")).text.splitlines()
    labelled = [line for line in lines if "model=" in line]
    assert len(labelled) > 50
    assert all('model="deployed",namespace="team"' in line for line in labelled)
    for code, endpoint in ((200, "/v1/completions"), (404, "/v1/completions"), (200, "/tokenize")):
        labels = f'code="{code}",endpoint="{endpoint}",model="deployed",namespace="team"'
        assert f"plimsoll_requests_total{{{labels}}} 1.0" in lines


@pytest.mark.parametrize("traced", [True, False])
async def test_sampled_requests_are_exemplars_of_latencies(
    run_server: Any, monkeypatch: pytest.MonkeyPatch, *, traced: bool
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    monkeypatch.setenv("OTEL_EXPORTER_ZIPKIN_ENDPOINT", "http://127.0.0.1:9/")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    flags = "01" if traced else "00"
    async with run_server(tracing=TracingOptions()) as running, running.http() as http:
        await http.post("/v1/completions", json=BODY, headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-{flags}"})
        opened = (await http.get("/metrics", headers=OPENMETRICS)).text
        assert TRACE not in (await http.get("/metrics")).text
    samples = [sample for family in text_string_to_metric_families(opened) for sample in family.samples]  # type: ignore[no-untyped-call]
    found = {sample.name.removesuffix("_bucket"): sample.exemplar for sample in samples if sample.exemplar is not None}
    assert set(found) == (EXEMPLARY if traced else set())
    assert all(exemplar.labels == {"trace_id": TRACE} for exemplar in found.values())


class _Engines:
    def __init__(self, pids: dict[ModelName, int]) -> None:
        self._pids = pids

    def collect(self) -> Any:
        return engine_processes(self._pids)


def test_an_engines_process_is_measured_while_it_lives() -> None:
    gone = psutil.Popen(["true"])
    gone.wait()
    registry = CollectorRegistry()
    registry.register(_Engines({KEY: os.getpid(), ModelName("team", "gone"): gone.pid}))
    for name in ("plimsoll_engine_process_cpu_seconds_total", "plimsoll_engine_process_resident_bytes"):
        assert (registry.get_sample_value(name, {"namespace": "team", "model": "deployed"}) or 0) > 0
        assert registry.get_sample_value(name, {"namespace": "team", "model": "gone"}) is None


def test_without_a_deployment_the_first_name_is_the_label() -> None:
    assert metrics_key(None, ("org/model", "alias")) == ("", "org/model")
    assert metrics_key(None, ()) == ("", "")
    assert metrics_key(KEY, ("org/model",)) == KEY


async def test_a_trace_names_the_deployment_of_its_request(run_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    made: list[MakeSpans] = []
    monkeypatch.setattr(Tracer, "finish", lambda _tracer, make: made.append(make))
    async with run_server(deployment=KEY, tracing=TracingOptions()) as running, running.http() as http:
        await http.post("/v1/completions", json=BODY)
        await http.post("/v1/completions", json=BODY | {"model": "unknown"})
    served, refused = (make()[0].attributes for make in made if isinstance(make, RequestSpans))
    assert (served[NAMESPACE], served[MODEL], served[REQUEST_MODEL]) == (*KEY, "fake")
    assert {NAMESPACE, MODEL, REQUEST_MODEL}.isdisjoint(refused)
