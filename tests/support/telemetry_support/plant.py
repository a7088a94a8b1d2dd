"""A gateway before two servers of a tiny model and a replica that is gone, as processes. All addresses are here."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from operator_support.apiserver import free_port
from prometheus_client.parser import text_string_to_metric_families
from telemetry_support.collectors import dead_port
from telemetry_support.tools import LOCAL, await_ready, running

MODEL = "tiny"
GATEWAY, RUNTIME = "plimsoll-gateway", "plimsoll-runtime"
COMMON = {"OTEL_BSP_SCHEDULE_DELAY": "200", "OTEL_EXPORTER_OTLP_TIMEOUT": "2"}


@dataclass(frozen=True)
class Part:
    """A process. `url` has its API, `metrics` its series."""

    name: str
    pid: int
    url: str
    metrics: str
    log: Path

    def samples(self) -> dict[str, float]:
        """Return the values of its series, summed over their labels; with each outcome of traces on its own."""
        found: dict[str, float] = {}
        with urllib.request.urlopen(self.metrics, timeout=60) as response:
            text = response.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name
                found[name] = found.get(name, 0.0) + sample.value
                if (outcome := sample.labels.get("outcome")) is not None:
                    found[f"{name}/{outcome}"] = sample.value
        return found

    def engine(self) -> psutil.Process:
        """Return the process of its engine."""
        children = psutil.Process(self.pid).children(recursive=True)
        return next(each for each in children if "engine" in " ".join(each.cmdline()) or len(children) == 1)


@dataclass(frozen=True)
class Plant:
    """All processes."""

    gateway: Part
    runtimes: Sequence[Part]

    @property
    def parts(self) -> Sequence[Part]:
        return (self.gateway, *self.runtimes)


@contextmanager
def serving_tiny(model: Path, folder: Path, name: str, environment: Mapping[str, str], *options: str) -> Iterator[Part]:
    """Serve a model."""
    log = folder / f"{name}.log"
    argv: list[str | Path] = [sys.executable, "-m", "plimsoll_runtime", "serve", model, "--name", MODEL, "--port", "0"]
    argv += ["--threads", "1", "--traces-per-second", "50000", *options]
    with running(argv, log, COMMON | dict(environment)) as process:
        await_ready(process, log, lambda: " ready: " in log.read_text())
        listening = re.search(r"listening on (http://[\d.]+:\d+)", log.read_text())
        assert listening is not None
        yield Part(name, process.pid, listening[1], f"{listening[1]}/metrics", log)


@contextmanager
def serving_gateway(folder: Path, urls: Sequence[str], environment: Mapping[str, str], *options: str) -> Iterator[Part]:
    """Run a gateway whose only model has replicas at these URLs."""
    log, table, port, metrics = folder / "gateway.log", folder / "table.json", free_port(), free_port()
    replicas = [{"id": f"r{number}", "url": url, "ready": True} for number, url in enumerate(urls)]
    model = {"namespace": "team", "name": "small", "servedNames": [MODEL], "created": "2026-01-01T00:00:00Z"}
    table.write_text(json.dumps({"models": [{**model, "message": "", "replicas": replicas}]}))
    argv = [sys.executable, "-m", "plimsoll_gateway", "--table", table, "--host", LOCAL, "--port", port]
    argv += ["--metrics-port", metrics, "--traces-per-second", "50000", "--lame-duck-seconds", "0", *options]
    url = f"http://{LOCAL}:{port}"
    with running([str(word) for word in argv], log, COMMON | dict(environment)) as process:
        await_ready(process, log, lambda: _is_healthy(url))
        yield Part("gateway", process.pid, url, f"http://{LOCAL}:{metrics}/metrics", log)


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@contextmanager
def running_plant(
    model: Path, folder: Path, environments: Sequence[Mapping[str, str]], *options: str
) -> Iterator[Plant]:
    """Run a gateway and two servers, whose environments are these. `options` are those of the servers."""
    with ExitStack() as stack:
        runtimes = [
            stack.enter_context(serving_tiny(model, folder, f"runtime{number}", environment, *options))
            for number, environment in enumerate(environments[1:])
        ]
        urls = [f"http://{LOCAL}:{dead_port()}", *(each.url for each in runtimes)]
        yield Plant(stack.enter_context(serving_gateway(folder, urls, environments[0])), runtimes)
