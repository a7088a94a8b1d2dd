"""`plimsoll host` as a process of its own, with real engines and a tiny random model under two names."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from server_support.host import HostProcess, running_host


@dataclass(frozen=True)
class Hosted(HostProcess):
    def complete(self, model: str, **fields: Any) -> httpx.Response:
        body = {"model": model, "prompt": "Hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=120)

    def report(self) -> Any:
        return httpx.get(f"{self.host_url}/host/v1/report", timeout=120).json()


@pytest.fixture
def hosted(tiny_model: Path, tmp_path: Path) -> Iterator[Hosted]:
    documents = [
        {
            "apiVersion": "plimsoll.dev/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": name},
            "spec": {"model": {"source": f"file://{tiny_model}"}, "runtime": {"kvMemory": "1MiB"}},
        }
        for name in ("one", "two")
    ]
    (tmp_path / "models.yaml").write_text("\n---\n".join(map(json.dumps, documents)))
    options = ("--port", "0", "--models", str(tmp_path / "models.yaml"), "--sleepers", "64MiB")
    environment = os.environ | {"PLIMSOLL_CACHE": str(tmp_path / "cache")}
    with running_host(tmp_path / "log", *options, environment=environment) as host:
        yield Hosted(host.process, host.url, host.host_url)


@pytest.mark.long
def test_the_life_of_a_host(hosted: Hosted) -> None:
    answers = {name: hosted.complete(name).json()["choices"][0]["text"] for name in ("one", "two")}
    assert answers["one"] == answers["two"] != ""
    first = httpx.post(
        f"{hosted.host_url}/host/v1/models/default/one/sleep",
        json={"operation": "a", "level": "InHost"},
        timeout=120,
    )
    assert first.status_code in (200, 202), first.text
    assert hosted.complete("one").json()["choices"][0]["text"] == answers["one"]
    (entry,) = [model for model in hosted.report()["models"] if model["name"] == "one"]
    assert (entry["state"], entry["loads"]) == ("Resident", 1)
    hosted.process.send_signal(signal.SIGTERM)
    engines = hosted.family()
    assert hosted.process.wait(120) == 0
    assert not psutil.wait_procs(engines, timeout=120)[1]


def maps_of(pid: int) -> str:
    """Return the mapped files of a process; nothing if it ends, as processes do that only measure a model."""
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return ""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="finds an engine by what it maps")
def test_an_engine_that_is_killed_is_replaced(hosted: Hosted) -> None:
    expected = hosted.complete("one").json()["choices"][0]["text"]
    assert hosted.complete("two").status_code == 200
    image = "plimsoll:default/one"
    (doomed,) = [engine for engine in hosted.family() if image in maps_of(engine.pid)]
    doomed.kill()
    assert hosted.complete("two").status_code == 200
    answer = hosted.complete("one")
    if answer.status_code != 200:  # the request arrived before the host had noticed
        assert answer.json()["error"]["code"] == "engine_died"
        answer = hosted.complete("one")
    assert answer.json()["choices"][0]["text"] == expected
    (entry,) = [model for model in hosted.report()["models"] if model["name"] == "one"]
    assert (entry["loads"], entry["wakes"]) == (1, 1)
    assert httpx.get(f"{hosted.url}/live", timeout=120).status_code == 200
