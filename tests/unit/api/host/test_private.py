"""A private model in a real `plimsoll host`: its token opens it, and does not appear anywhere afterwards."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from model_support.hub import Hub, serving
from server_support.host import HostProcess, running_host

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

FULL = "the token of the operator, which may do everything"
RIGHT, WRONG, NEXT = "hf_RightRightRight7", "hf_WrongWrongWrong7", "hf_NextNextNextNext7"
SECRETS = (RIGHT, WRONG, NEXT, FULL)
Json = dict[str, Any]


@dataclass
class Hosting:
    host: HostProcess
    folder: Path
    said: list[str] = field(default_factory=list)
    _number: int = 0

    def ask(self, method: str, path: str, body: Json | None = None) -> httpx.Response:
        answer = httpx.request(
            method,
            f"{self.host.host_url}/host/v1/{path}",
            json=body,
            headers={"Authorization": f"Bearer {FULL}"},
            timeout=120,
        )
        self.said.append(answer.text)
        return answer

    def place(self, name: str, token: str, level: str = "OnDisk") -> httpx.Response:
        self._number += 1
        spec: Json = {"revision": str(self._number), "source": "hf://org/private", "servedNames": [name]}
        spec |= {"minimumKv": "1MiB", "token": token}
        return self.ask("PUT", f"models/{name}/m", {"operation": f"o{self._number}", "spec": spec, "level": level})

    def entry(self, name: str, holds: Callable[[Json], bool]) -> Json:
        """Wait until the condition holds for the model's entry, and return the entry."""
        sequence = 0
        while True:
            report = self.ask("GET", f"report?after={sequence}&wait=30").json()
            sequence = report["sequence"]
            for entry in report["models"]:
                if entry["namespace"] == name and holds(entry):
                    return dict(entry)

    def complete(self, name: str) -> httpx.Response:
        body = {"model": name, "prompt": "Hello", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"{self.host.url}/v1/completions", json=body, timeout=120)
        self.said.append(answer.text)
        return answer

    def everything(self) -> Iterator[tuple[str, str]]:
        """Return everything that processes other than the host can read of it."""
        yield from ((f"answer {number}", text) for number, text in enumerate(self.said))
        yield "the log", (self.folder / "log").read_text()
        yield "metrics", httpx.get(f"{self.host.url}/metrics", timeout=120).text
        yield "models", httpx.get(f"{self.host.url}/v1/models", timeout=120).text
        yield from shown_by(self.host.process.pid)
        for process in self.host.family():
            with suppress(ProcessLookupError, FileNotFoundError):  # the process has just ended
                yield from shown_by(process.pid)
        for path in self.folder.rglob("*"):
            with suppress(FileNotFoundError):  # the file was renamed or removed in between
                if path.is_file() and path.stat().st_size < 2**20:
                    yield str(path), path.read_text(errors="replace")


def shown_by(pid: int) -> Iterator[tuple[str, str]]:
    """Return what a process shows in /proc."""
    for name in ("cmdline", "environ"):
        yield f"{name} of {pid}", Path(f"/proc/{pid}/{name}").read_text(errors="replace")


@pytest.fixture
def hub(tiny_model: Path) -> Iterator[Hub]:
    files = {path.name: path.read_bytes() for path in tiny_model.iterdir() if path.is_file()}
    with serving(Hub(files=files, token=RIGHT)) as made:
        yield made


@pytest.fixture
def hosting(hub: Hub, tmp_path: Path) -> Iterator[Hosting]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
    environment = inherited | {
        "PLIMSOLL_CACHE": str(tmp_path / "cache"),
        "PLIMSOLL_HOST_TOKENS": hashlib.sha256(FULL.encode()).hexdigest(),
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "huggingface"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    options = ("--port", "0", "--sleepers", "64MiB")
    with running_host(tmp_path / "log", *options, environment=environment) as host:
        yield Hosting(host, tmp_path)


@pytest.mark.long
def test_a_token_opens_a_model_for_its_namespace_and_shows_nowhere(hosting: Hosting, hub: Hub) -> None:
    assert hosting.place("team", RIGHT, "Resident").status_code in (200, 202)
    hosting.entry("team", lambda entry: entry["state"] == "Resident")
    assert hosting.complete("team").status_code == 200
    assert hub.tokens_seen == {RIGHT}

    hosting.place("guests", WRONG)
    refused = hosting.entry("guests", lambda entry: entry["error"] is not None)
    assert "check the token of spec.model.tokenSecret" in refused["error"]
    hosting.place("nobody", "")
    assert "set spec.model.tokenSecret" in hosting.entry("nobody", lambda entry: entry["error"] is not None)["error"]
    odd = hosting.place("odd", f"{WRONG}\nX-Header: no")
    assert odd.status_code == 400
    assert "printable ASCII" in odd.text
    broken = hosting.ask(
        "PUT", "models/odd/m", {"operation": "x", "spec": {"token": RIGHT, "source": 7}, "level": "no"}
    )
    assert broken.status_code == 400

    hub.token = NEXT  # after a rotation, models stay served, and new fetches use the new token
    assert hosting.place("team", NEXT, "Resident").status_code == 200
    assert hosting.entry("team", lambda entry: entry["revision"] != "1")["loads"] == 1
    assert hosting.complete("team").status_code == 200
    hosting.place("guests", NEXT)
    assert hosting.entry("guests", lambda entry: entry["state"] == "OnDisk")["error"] is None
    assert hub.tokens_seen == {RIGHT, WRONG, NEXT, ""}

    found = [(where, secret) for where, text in hosting.everything() for secret in SECRETS if secret in text]
    assert found == []
    assert (hosting.folder / "huggingface/private/team").is_dir()
    assert not list((hosting.folder / "huggingface").glob("private/nobody/**/config.json"))
