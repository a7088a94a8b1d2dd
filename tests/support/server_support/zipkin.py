"""A collector with Zipkin's API that keeps the spans it gets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec


class Zipkin:
    """The spans that were sent to `endpoint`."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}/api/v2/spans"
        self.spans: list[dict[str, Any]] = []

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a process send its traces here."""
        return {
            "OTEL_TRACES_EXPORTER": "zipkin",
            "OTEL_EXPORTER_ZIPKIN_ENDPOINT": self.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }

    def until_named(self, *wanted: str, seconds: float = 60) -> None:
        """Wait until there are spans with these names."""
        end = time.monotonic() + seconds
        while not set(wanted) <= {span["name"] for span in self.spans}:
            assert time.monotonic() < end, f"no span {wanted}, but {sorted({span['name'] for span in self.spans})}"
            time.sleep(0.02)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"] == name]

    def children(self, parent: dict[str, Any]) -> list[dict[str, Any]]:
        return [span for span in self.spans if span.get("parentId") == parent["id"]]


@contextmanager
def zipkin() -> Iterator[Zipkin]:
    """Run a collector."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.spans += msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(202)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Zipkin(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
