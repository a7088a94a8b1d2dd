"""`plimsoll up` divides a model among ranks by `spec.parallel`: answers are those of one rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from groups_support.ranks import CHECKED, until
from port_support.held import held_port
from server_support.process import serving
from structured_support.models import spelling_model

SECONDS = 120.0
BODY = {"model": "tiny", "prompt": [9, 2, 6] * 5, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
RUNTIME = {"dtype": "float32", "kvMemory": "8MiB"}


@pytest.fixture
def port() -> Iterator[int]:
    with held_port() as found:
        yield found


@contextmanager
def up(folder: Path, port: int, model: Path, **spec: Any) -> Iterator[tuple[str, psutil.Process]]:
    """Run one model until it is ready. Yields the URL of the gateway, and the process."""
    manifest = {
        "apiVersion": "plimsoll.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "tiny"},
        "spec": {"model": {"source": f"file://{model}"}, "runtime": RUNTIME, **spec},
    }
    (folder / "tiny.yaml").write_text(json.dumps(manifest))
    command = [sys.executable, "-P", "-m", "plimsoll_runtime", "up", str(folder / "tiny.yaml"), "--port", str(port)]
    environment = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env=environment)
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            response = httpx.get(f"{url}/v1/models/tiny", timeout=10)
        except httpx.TransportError:
            return False  # the gateway is starting
        return response.status_code == 200 and bool(response.json()["ready"])

    try:
        until(is_ready, SECONDS)
        yield url, psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0


@pytest.mark.long
def test_two_ranks_answer_as_one(tmp_path: Path, port: int) -> None:
    model = spelling_model(tmp_path / "model", num_attention_heads=6, num_key_value_heads=3, head_dim=16)
    with serving(model, tmp_path / "alone", *CHECKED) as alone:
        expected = httpx.post(f"{alone.url}/v1/completions", json=BODY, timeout=SECONDS).json()
    with up(tmp_path, port, model, parallel={"tensor": 2, "pods": 2, "recoverSeconds": 60}) as (url, process):
        found = httpx.post(f"{url}/v1/completions", json=BODY, timeout=SECONDS).json()
        assert found["choices"][0]["text"] == expected["choices"][0]["text"]
        names = [each.name() for each in process.children(recursive=True)]
        assert sorted(name for name in names if name.startswith("plimsoll-rank")) == [
            "plimsoll-rank-0",
            "plimsoll-rank-1",
        ]
    assert "tiny: without effect on a laptop: spec.parallel.pods" in (tmp_path / "log").read_text()
