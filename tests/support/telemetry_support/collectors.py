"""Collectors of traces that keep everything: OTLP over HTTP and gRPC, and HTTP servers that misbehave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Received:
    """What a collector received. `bodies` are the requests as sent, `code` is the status that it answers."""

    endpoint: str = ""
    code: int = 200
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def requests(self) -> list[ExportTraceServiceRequest]:
        """The requests of OTLP."""
        return [ExportTraceServiceRequest.FromString(body) for body in list(self.bodies)]

    def spans(self) -> list[Span]:
        """Return all spans of OTLP."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def http_collector(port: int = 0) -> Iterator[Received]:
    """Run an HTTP server that keeps the bodies of POST requests."""
    found = Received()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if found.code < 400:
                found.bodies.append(body)
            found.headers.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
            self.send_response(found.code)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    found.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def grpc_collector() -> Iterator[Received]:
    """Run a gRPC server for OTLP."""
    found = Received()

    class Servicer(TraceServiceServicer):
        def Export(
            self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
        ) -> ExportTraceServiceResponse:
            if found.code >= 400:
                context.abort(grpc.StatusCode.INTERNAL, "out of order")
            found.bodies.append(request.SerializeToString())
            found.headers.append({str(name): str(value) for name, value in context.invocation_metadata()})
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(Servicer(), server)  # type: ignore[no-untyped-call]
    found.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield found
    finally:
        server.stop(None).wait()


@contextmanager
def raw_server(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a TCP server that calls `serve` with each connection and closes it afterwards; yield its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def handle(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            serve(connection)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=handle, args=(connection,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in [accepting, *threads]:
            thread.join()


def read_request(connection: socket.socket) -> bytes:
    """Read a request with a content-length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    (length,) = [int(line.partition(b":")[2]) for line in head.lower().split(b"\r\n") if b"content-length" in line]
    while len(body) < length:
        body += connection.recv(65536)
    return body


def dead_port() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
