"""A stand-in for the hub on the loopback, for the real client library: repositories by kind of access, and failures."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

WEIGHTS = struct.pack("<Q", 2) + b"{}"
"""A complete safetensors file without tensors."""
FILES: Mapping[str, bytes] = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b"{}",
    "README.md": b"not needed",
    "pytorch_model.bin": b"not read",
    "consolidated.safetensors": b"the weights again",
    "onnx/config.json": b"other format",
}
PIECE = 2**20
MAIN, OLD = "a" * 40, "b" * 40
TOKEN = "hf_right"


@dataclass
class Hub:
    """State and failures of the stand-in hub.

    - `refuses`: the status of all responses. `pause`: seconds before each `PIECE` of a file.
    - `ranges`: it supports range requests; `sent`: bytes sent so far.
    - `odd`: content to send instead of a file; `etags`: replaced ETags; `gone`: missing files;
    - `listed`: the list of files to report; `unsized`: it sends no lengths.
    - `stalls`: it starts to send weights and never ends. `stalled` is set then, `hung_up` once the client is gone.
    """

    url: str = ""
    files: Mapping[str, bytes] = field(default_factory=lambda: FILES)
    token: str = TOKEN
    tokens_seen: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    revisions: dict[str, str] = field(default_factory=lambda: {"main": MAIN, "v1": OLD})
    cut: bool = False
    odd: dict[str, bytes] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    listed: tuple[str, ...] | None = None
    unsized: bool = False
    nonsense: bool = False
    refuses: int = 0
    stalls: bool = False
    ranges: bool = True
    pause: float = 0.0
    sent: int = 0
    stalled: Event = field(default_factory=Event)
    hung_up: Event = field(default_factory=Event)


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Do not log requests."""

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.tokens_seen.add((self.headers.get("Authorization") or "").removeprefix("Bearer "))
            hub.asked.append(f"{self.command} {path}")
            parts = path.strip("/").split("/")
            if hub.refuses:
                self.refuse(hub.refuses, "")
            elif hub.nonsense:
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
            authorised = self.headers.get("Authorization") == f"Bearer {hub.token}"
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
                for path, content in hub.files.items()
                if hub.listed is None or path in hub.listed
            ]
            self.answer(json.dumps(listed).encode())

        def file(self, sha: str, name: str) -> None:
            if name in hub.gone:
                self.answer(b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha}, status=404)
                return
            content = hub.files[name]
            asked = (self.headers.get("Range") or "").removeprefix("bytes=0-")
            if asked and self.command == "GET" and hub.ranges:
                self.range(content, int(asked) + 1)
                return
            etag = hub.etags.get(name, hashlib.sha1(content).hexdigest())
            content = hub.odd.get(name, content)
            weights = name == "model.safetensors" and self.command == "GET"
            cut = weights and (hub.cut or hub.stalls)
            self.answer(content, {"ETag": f'"{etag}"', "X-Repo-Commit": sha}, cut=cut)
            if weights and hub.stalls:
                self.stall()

        def range(self, content: bytes, count: int) -> None:
            hub.sent += min(count, len(content))
            end = f"bytes 0-{min(count, len(content)) - 1}/{len(content)}"
            self.answer(content[:count], {"Content-Range": end}, status=206)

        def stall(self) -> None:
            """Send nothing more until the client disconnects."""
            self.wfile.flush()
            hub.stalled.set()
            with suppress(ConnectionError):
                self.connection.recv(1)
            hub.hung_up.set()

        def refuse(self, status: int, code: str) -> None:
            self.answer(b"{}", {"X-Error-Code": code}, status=status)

        def answer(
            self, body: bytes, headers: Mapping[str, str] | None = None, *, status: int = 200, cut: bool = False
        ) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                if key != "Content-Length" or not hub.unsized:
                    self.send_header(key, value)
            self.end_headers()
            if self.command != "GET":
                return
            body = body[:3] if cut else body
            for begin in range(0, len(body), PIECE):
                time.sleep(hub.pause if len(body) > PIECE else 0)
                self.wfile.write(body[begin : begin + PIECE])

    return Handler


def use(hub: Hub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make processes that start from now on use this hub and keep downloads in `home`."""
    for name in os.environ:
        if name.startswith("HF_") or "proxy" in name.lower():
            monkeypatch.delenv(name)
    for name, value in {"ENDPOINT": hub.url, "HOME": str(home), "HUB_DISABLE_XET": "1"}.items():
        monkeypatch.setenv(f"HF_{name}", value)


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve the hub at its `url` in this context."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
