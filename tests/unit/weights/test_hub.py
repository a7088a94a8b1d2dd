"""Models of a hub: a stand-in on the loopback, asked by the real client library in a process of its own.

The library reads HF_ENDPOINT, HF_HUB_OFFLINE and the rest once, when it is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

FILES: Mapping[str, bytes] = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "README.md": b"not needed",
    "pytorch_model.bin": b"not read",
    "consolidated.safetensors": b"the weights again",
    "onnx/config.json": b"other format",
}
MAIN, OLD = "a" * 40, "b" * 40
TOKEN = "hf_right"


@dataclass
class Hub:
    """What the stand-in serves: repositories by kind of access, and how it fails."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    revisions: dict[str, str] = field(default_factory=lambda: {"main": MAIN, "v1": OLD})
    cut: bool = False
    nonsense: bool = False


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Tests are quiet."""

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(f"{self.command} {path}")
            parts = path.strip("/").split("/")
            if hub.nonsense:
                self.answer(b"<html>Please log in to the network</html>")
            elif refusal := self.refusal("/".join(parts[2:4] if parts[0] == "api" else parts[:2])):
                self.refuse(*refusal)
            elif parts[0] != "api":
                self.file(parts[3], "/".join(parts[4:]))
            elif parts[4] == "revision":
                self.revision(parts[5])
            else:
                self.tree()

        do_HEAD = do_GET

        def refusal(self, repository: str) -> tuple[int, str] | None:
            authorised = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            if repository == "org/gated" and not authorised:
                return 403, "GatedRepo"
            if repository == "org/private" and not authorised:
                return 401, "RepoNotFound"
            return None if repository in ("org/model", "org/gated", "org/private") else (404, "RepoNotFound")

        def revision(self, name: str) -> None:
            sha = hub.revisions.get(name)
            if sha is None:
                self.refuse(404, "RevisionNotFound")
            else:
                self.answer(json.dumps({"id": "org/model", "sha": sha, "siblings": []}).encode())

        def tree(self) -> None:
            listed: list[dict[str, Any]] = [
                {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for path, content in FILES.items()
            ]
            self.answer(json.dumps(listed).encode())

        def file(self, sha: str, name: str) -> None:
            content = FILES[name]
            etag = hashlib.sha1(content).hexdigest()
            cut = hub.cut and name == "model.safetensors" and self.command == "GET"
            self.answer(content, {"ETag": f'"{etag}"', "X-Repo-Commit": sha}, cut=cut)

        def refuse(self, status: int, code: str) -> None:
            self.answer(b"{}", {"X-Error-Code": code}, status=status)

        def answer(
            self, body: bytes, headers: Mapping[str, str] | None = None, *, status: int = 200, cut: bool = False
        ) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[:3] if cut else body)

    return Handler


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(made))
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


SCRIPT = """
import sys
from plimsoll_runtime.errors import PlimsollError
from plimsoll_runtime.weights.sources import resolve
for model, revision in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        files = resolve(model, revision or None)
        print("found", files.name, files.root)
    except PlimsollError as error:
        print(type(error).__name__, error)
"""


def fetch(hub: Hub, home: Path, *models: str, revision: str = "", **environment: str) -> list[str]:
    """One line for each model, from a process of its own."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
    settings = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    arguments = [part for model in models for part in (model, revision)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env={**inherited, **settings, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_model_is_fetched_once_and_then_found_without_the_hub(hub: Hub, tmp_path: Path) -> None:
    found = fetch(hub, tmp_path, "hf://org/model", "org/model")
    root = tmp_path / "hub" / "models--org--model" / "snapshots" / MAIN
    assert found == [f"found org/model {root}"] * 2
    assert sorted(p.name for p in root.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (root / "model.safetensors").read_bytes() == b"weights"
    hub.asked.clear()
    assert fetch(hub, tmp_path, "org/model", HF_HUB_OFFLINE="1") == found[:1]
    assert hub.asked == []
    assert fetch(hub, tmp_path, "org/model", HF_ENDPOINT="http://127.0.0.1:9") == found[:1]


def test_revisions(hub: Hub, tmp_path: Path) -> None:
    by_name, by_option = (
        fetch(hub, tmp_path, "hf://org/model@v1"),
        fetch(hub, tmp_path, "hf://org/model", revision="v1"),
    )
    assert by_name == by_option
    assert by_name[0].endswith(OLD)
    both = fetch(hub, tmp_path, "hf://org/model@v2", "hf://org/model@v1@x")
    assert both[0] == "SourceError hf://org/model@v2: the hub has no revision 'v2' of it"
    assert both[1].startswith("SourceError hf://org/model@v1@x: the hub has no revision")


def test_what_is_not_there_or_not_allowed(hub: Hub, tmp_path: Path) -> None:
    missing, private, gated, nonsense, empty = fetch(
        hub, tmp_path, "org/missing", "org/private", "org/gated", "no/such/model", "hf://"
    )
    assert missing == "SourceError hf://org/missing does not exist (or is private: set HF_TOKEN)"
    assert private == "SourceError hf://org/private does not exist (or is private: set HF_TOKEN)"
    assert gated == "SourceError hf://org/gated is gated: accept its terms on the hub and set HF_TOKEN"
    assert nonsense.startswith("SourceError 'no/such/model' is no folder, no .gguf file and no Hugging Face id")
    assert empty.startswith("SourceError ")


def test_a_token_opens_what_is_private(hub: Hub, tmp_path: Path) -> None:
    opened = fetch(hub, tmp_path, "org/private", "org/gated", HF_TOKEN=TOKEN)
    assert [line.split()[:2] for line in opened] == [["found", "org/private"], ["found", "org/gated"]]
    [refused] = fetch(hub, tmp_path / "other", "org/private", HF_TOKEN="hf_wrong")
    assert refused.startswith("SourceError hf://org/private does not exist (or is private")


def test_a_hub_that_cannot_be_reached(hub: Hub, tmp_path: Path) -> None:
    [nobody] = fetch(hub, tmp_path, "org/model", HF_ENDPOINT="http://127.0.0.1:9")
    assert nobody.startswith("SourceError hf://org/model is not in the cache and the hub cannot be reached (Got: Conn")
    assert nobody.endswith(
        "check the network, HF_ENDPOINT, HF_HUB_OFFLINE and HF_HOME; if you meant a folder, it is not there"
    )
    [offline] = fetch(hub, tmp_path, "org/model", HF_HUB_OFFLINE="1")
    assert "is not in the cache and the hub cannot be reached" in offline


def test_a_mirror_that_answers_nonsense(hub: Hub, tmp_path: Path) -> None:
    hub.nonsense = True
    [line] = fetch(hub, tmp_path, "org/model")
    assert line.startswith("SourceError hf://org/model cannot be fetched: JSONDecodeError")


def test_a_cut_download_leaves_nothing_that_looks_whole(hub: Hub, tmp_path: Path) -> None:
    hub.cut = True
    [line] = fetch(hub, tmp_path, "org/model")
    assert line.startswith("SourceError hf://org/model cannot be fetched: ")
    [offline] = fetch(hub, tmp_path, "org/model", HF_HUB_OFFLINE="1")
    assert offline.startswith("SourceError hf://org/model is not in the cache")
    hub.cut = False
    [again] = fetch(hub, tmp_path, "org/model")
    assert again.startswith("found")
