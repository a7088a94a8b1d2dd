"""`python -m tracing.collector PORT`: takes OTLP over HTTP and keeps nothing. GET returns the number of requests."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    taken = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        _Handler.taken += 1
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(str(_Handler.taken).encode())

    def log_message(self, *_: object) -> None: ...

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Handler).serve_forever()
