"""Jaeger, Zipkin and Prometheus as processes. `python3 e2e/cluster telemetry` fetches and builds them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from operator_support.apiserver import free_port, until

from cluster.layout import find_layout
from cluster.shell import DIE_WITH_PARENT
from cluster.telemetry import JAEGER_BINARY, package, zipkin

LOCAL = "127.0.0.1"
START_SECONDS = 120.0
MOST_TRACES = 5000


class MissingToolError(Exception):
    """A program is not in the cache."""


@dataclass(frozen=True)
class SeenSpan:
    """A span as a backend shows it; times are in microseconds."""

    trace: str
    id: str
    parent: str
    service: str
    name: str
    start: int
    duration: int
    tags: Mapping[str, str]


class Backend(Protocol):
    """A backend of traces."""

    process: subprocess.Popen[bytes]

    def environment(self, protocol: str) -> dict[str, str]:
        """Return the variables with which a program sends traces to it."""

    def traces(self, service: str) -> dict[str, list[SeenSpan]]:
        """Return the traces in which a service has a span."""


def _needed(path: Path) -> Path:
    if not path.exists():
        raise MissingToolError(f"needs {path.name}: `python3 e2e/cluster telemetry` fetches it")
    return path


def program(name: str) -> Path:
    """Return the path of prometheus, promtool or prometheus-alertmanager. Raises MissingToolError."""
    layout = find_layout(os.environ, Path.home())
    owner = name if name == "prometheus-alertmanager" else "prometheus"
    return _needed(package(layout, owner) / "usr" / "bin" / name)


def get(url: str) -> Any:
    """Return the JSON at a URL."""
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.load(response)


def answers(url: str) -> bool:
    """Return whether a URL has an answer of status 200."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@contextmanager
def running(
    argv: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with its output in a file; kill it at the end."""
    words = [*DIE_WITH_PARENT, *map(str, argv)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=output, env={**os.environ, **(environment or {})}, cwd=log.parent
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def await_ready(process: subprocess.Popen[bytes], log: Path, ready: Callable[[], bool]) -> None:
    """Wait until a program is ready. Raises AssertionError with its last output."""
    assert until(lambda: ready() or process.poll() is not None, START_SECONDS), log.read_text()[-2000:]
    assert process.poll() is None, log.read_text()[-2000:]


@dataclass
class Jaeger:
    """Jaeger with its memory as store."""

    process: subprocess.Popen[bytes]
    query: str
    http: str
    grpc: str

    def environment(self, protocol: str) -> dict[str, str]:
        """Return the variables with which a program sends traces to it."""
        endpoint = self.grpc if protocol == "grpc" else self.http
        return {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        }

    def traces(self, service: str) -> dict[str, list[SeenSpan]]:
        """Return the traces in which a service has a span."""
        end = int((time.time() + 60) * 1e6)
        times = f"start={end - 3_600_000_000}&end={end}"
        found = get(f"{self.query}/api/traces?service={service}&limit={MOST_TRACES}&{times}")["data"]
        return {trace["traceID"]: [self._span(trace, span) for span in trace["spans"]] for trace in found}

    @staticmethod
    def _span(trace: Any, span: Any) -> SeenSpan:
        parents = [each["spanID"] for each in span["references"] if each["refType"] == "CHILD_OF"]
        return SeenSpan(
            trace["traceID"],
            span["spanID"],
            parents[0] if parents else "",
            trace["processes"][span["processID"]]["serviceName"],
            span["operationName"],
            span["startTime"],
            span["duration"],
            {tag["key"]: str(tag["value"]) for tag in span["tags"]},
        )


@contextmanager
def running_jaeger(folder: Path) -> Iterator[Jaeger]:
    """Run Jaeger. Raises MissingToolError."""
    layout = find_layout(os.environ, Path.home())
    binary, log = _needed(JAEGER_BINARY.path(layout)), folder / "jaeger.log"
    names = ("query.http", "query.grpc", "collector.grpc", "collector.http")
    ports = {f"{name}-server": free_port() for name in names}
    ports |= {name: free_port() for name in ("collector.otlp.http", "collector.otlp.grpc", "admin.http")}
    options = [f"--{name}.host-port={LOCAL}:{port}" for name, port in ports.items()]
    argv: list[str | Path] = [binary, *options, f"--memory.max-traces={MOST_TRACES}", "--log-level=warn"]
    query = f"http://{LOCAL}:{ports['query.http-server']}"
    http, grpc = (f"http://{LOCAL}:{ports[f'collector.otlp.{kind}']}" for kind in ("http", "grpc"))
    with running(argv, log) as process:
        await_ready(process, log, lambda: answers(f"{query}/api/services"))
        yield Jaeger(process, query, http, grpc)


@dataclass
class Zipkin:
    """Zipkin with its memory as store."""

    process: subprocess.Popen[bytes]
    url: str

    def environment(self, protocol: str) -> dict[str, str]:
        """Return the variables with which a program sends traces to it."""
        return {
            "OTEL_TRACES_EXPORTER": "zipkin",
            "OTEL_EXPORTER_ZIPKIN_ENDPOINT": f"{self.url}/api/v2/spans",
            "OTEL_EXPORTER_ZIPKIN_TIMEOUT": "2000",
        }

    def traces(self, service: str) -> dict[str, list[SeenSpan]]:
        """Return the traces in which a service has a span."""
        found = get(f"{self.url}/api/v2/traces?serviceName={service}&limit={MOST_TRACES}&lookback=3600000")
        return {spans[0]["traceId"]: [self._span(span) for span in spans] for spans in found}

    @staticmethod
    def _span(span: Any) -> SeenSpan:
        return SeenSpan(
            span["traceId"],
            span["id"],
            span.get("parentId", ""),
            span["localEndpoint"]["serviceName"],
            span.get("name", ""),
            span["timestamp"],
            span["duration"],
            span.get("tags", {}),
        )


@contextmanager
def running_zipkin(folder: Path) -> Iterator[Zipkin]:
    """Run Zipkin. Raises MissingToolError."""
    jar, log, port = _needed(zipkin(find_layout(os.environ, Path.home()))), folder / "zipkin.log", free_port()
    if shutil.which("java") is None:
        raise MissingToolError("needs Java 17 for Zipkin: install the package openjdk-17-jre-headless")
    url = f"http://{LOCAL}:{port}"
    with running(["java", "-Xmx400m", "-jar", jar], log, {"QUERY_PORT": str(port)}) as process:
        await_ready(process, log, lambda: answers(f"{url}/health"))
        yield Zipkin(process, url)


BACKENDS: Mapping[str, Callable[[Path], Any]] = {"jaeger": running_jaeger, "zipkin": running_zipkin}
