"""Traces of a real server and engine: its start, its steps and their requests, content only if it is on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from server_support.process import serving
from server_support.zipkin import Zipkin, zipkin

SECRET = "xylophone"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> object:
    with zipkin() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.mark.parametrize("content", [False, True])
def test_a_server_traces_its_start_and_the_steps_of_its_requests(
    tiny_model: Path, tmp_path: Path, collector: Zipkin, content: bool
) -> None:
    assert "OTEL_TRACES_EXPORTER" in os.environ
    options = ["--trace-every-steps", "2", *(["--trace-content"] if content else [])]
    with serving(tiny_model, tmp_path / "log", *options) as served:
        served.client.completions.create(
            model="tiny", prompt=SECRET, max_tokens=9, temperature=0.5, n=2, extra_body={"ignore_eos": True}
        )
        collector.until_named("POST /v1/completions", "engine step", "load model")
        warned = any("traces contain the beginning of prompts" in line for line in served.lines)
    assert warned is content
    text = str(collector.spans)
    assert (SECRET in text) is content
    [start] = collector.named("load model")
    stages = [span["name"] for span in collector.children(start)]
    assert {"load weights", "plan the KV cache", "warm-up"} <= set(stages)
    assert start["tags"]["gen_ai.request.model"] == "tiny"
    assert start["tags"]["plimsoll.attention.backend"]

    [request] = collector.named("POST /v1/completions")
    assert request["tags"]["gen_ai.request.max_tokens"] == "9"
    assert request["tags"]["gen_ai.request.temperature"] == "0.5"
    assert request["tags"]["gen_ai.request.choice.count"] == "2"
    steps = collector.named("engine step")
    assert len(steps) >= 4
    link = f"{request['traceId']}/{request['id']}"
    linked = [step for step in steps if step["tags"].get("links") == link]
    assert len(linked) >= 4
    assert {f"{step['traceId']}/{step['id']}" for step in linked} == set(request["tags"]["links"].split(", "))
    for step in linked:
        phases = {span["name"]: span for span in collector.children(step)}
        assert {"schedule", "inputs", "forward", "head", "sample", "commit"} == set(phases)
        ops = {span["name"]: span for span in collector.children(phases["forward"])}
        if step["tags"]["plimsoll.reason"] == "sampled":
            assert {"qkv", "attention", "down"} <= set(ops)
            assert int(ops["qkv"]["tags"]["plimsoll.flops"]) > 0
            assert ops["qkv"]["tags"]["plimsoll.scheme"]
    ids = {(span["traceId"], span["id"]) for span in collector.spans}
    assert all((span["traceId"], span["parentId"]) in ids for span in collector.spans if "parentId" in span)


def test_a_start_that_fails_is_a_trace_with_its_error(tiny_model: Path, tmp_path: Path, collector: Zipkin) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    [weights] = model.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-64])
    command = [sys.executable, "-m", "plimsoll_runtime", "serve", str(model), "--name", "tiny", "--port", "0"]
    assert subprocess.run(command, check=False, capture_output=True, timeout=120).returncode > 0
    [start] = collector.named("load model")
    assert start["tags"]["error"] == "model-invalid"
    assert str(tmp_path) not in str(collector.spans)
