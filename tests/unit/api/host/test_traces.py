"""Traces of a real host: fetches, loads and wakes of its models, and the steps of their engines."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx
import pytest
from server_support.host import running_host
from server_support.zipkin import zipkin


@pytest.mark.long
def test_a_host_traces_how_its_models_start_and_their_steps(tiny_model: Path, tmp_path: Path) -> None:
    document = {
        "apiVersion": "plimsoll.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "one"},
        "spec": {"model": {"source": f"file://{tiny_model}"}, "runtime": {"kvMemory": "1MiB"}},
    }
    (tmp_path / "models.yaml").write_text(json.dumps(document))
    options = ["--port", "0", "--models", str(tmp_path / "models.yaml"), "--sleepers", "64MiB"]
    options += ["--trace-every-steps", "2"]
    body = {"model": "one", "prompt": "Hello", "max_tokens": 9, "ignore_eos": True}
    with zipkin() as collector:
        environment = os.environ | {"PLIMSOLL_CACHE": str(tmp_path / "cache")} | collector.environment
        with running_host(tmp_path / "log", *options, environment=environment) as host:
            assert httpx.post(f"{host.url}/v1/completions", json=body, timeout=120).status_code == 200
            slept = httpx.post(
                f"{host.host_url}/host/v1/models/default/one/sleep",
                json={"operation": "a", "level": "InHost"},
                timeout=120,
            )
            assert slept.status_code in (200, 202), slept.text
            assert httpx.post(f"{host.url}/v1/completions", json=body, timeout=120).status_code == 200
            collector.until_named("fetch model", "load model", "wake model", "engine step")
        for name in ("fetch model", "load model", "wake model", "engine step"):
            for span in collector.named(name):
                assert span["tags"]["plimsoll.model"] == "one"
                assert span["tags"]["plimsoll.namespace"] == "default"
        [load], [wake] = collector.named("load model"), collector.named("wake model")
        assert "load weights" in {span["name"] for span in collector.children(load)}
        assert "load weights" not in {span["name"] for span in collector.children(wake)}
        assert {"plan the KV cache", "warm-up"} <= {span["name"] for span in collector.children(wake)}
        requests = {f"{span['traceId']}/{span['id']}" for span in collector.named("POST /v1/completions")}
        assert requests & {step["tags"].get("links") for step in collector.named("engine step")}
