"""The server that is soaked: `plimsoll serve` as a person would start it, its processes and its counters."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from command import PLIMSOLL
from serving.http_load import free_port
from soak.traffic import CONTEXT, MODEL

START_SECONDS, STOP_SECONDS, POLL_SECONDS = 120.0, 60.0, 0.1
POOL_TOKENS = 4096
"""Four of the longest requests fill it: sequences give way and cached prefixes go."""
LOG_TAIL = 3000


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process holds: resident bytes, open file descriptors, threads."""

    resident: int
    descriptors: int
    threads: int


class ServerProcess:
    """A server's process on a free loopback port and the engine's process under it. Raises RuntimeError at its end."""

    def __init__(self, model: str, options: Sequence[str]) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._folder = tempfile.TemporaryDirectory(prefix="server-")
        self.log = Path(self._folder.name) / "server.log"
        command = [*PLIMSOLL, "serve", model, "--port", str(port), *options]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            self._wait_ready()
            self._processes = self._find_processes()
        except BaseException:
            self.stop()
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether the server's process runs; the server ends with its engine."""
        return self._process.poll() is None

    def footprints(self) -> Mapping[str, Footprint]:
        """Of the processes "server" and "engine", as far as they are there."""
        found = {}
        for name, process in self._processes.items():
            try:
                with process.oneshot():
                    found[name] = Footprint(process.memory_info().rss, process.num_fds(), process.num_threads())
            except psutil.NoSuchProcess:
                continue
        return found

    def metrics(self) -> dict[str, float]:
        """Every series of /metrics that has no label but the model's."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            return parse_metrics(response.read().decode())

    def stop(self) -> int:
        """Ask the process to end, as an operator does; its exit code. Raises TimeoutExpired when it does not."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_bytes()[-LOG_TAIL:].decode(errors="replace")

    def close(self) -> None:
        """Forget the log."""
        self._folder.cleanup()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if not self.alive:
                raise RuntimeError(f"the server ended with {self._process.returncode}: {self.tail()}")
            if self._is_ready():
                return
            time.sleep(POLL_SECONDS)
        raise RuntimeError(f"the server was not ready within {START_SECONDS:g} s: {self.tail()}")

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                report: dict[str, Any] = json.load(response)
        except OSError:  # nobody listens yet, or it is too busy with loading to answer
            return False
        return bool(report["status"] == "ready")

    def _find_processes(self) -> dict[str, psutil.Process]:
        server = psutil.Process(self._process.pid)
        engines = server.children()
        if len(engines) != 1:
            raise RuntimeError(f"the server has {len(engines)} child processes; one engine was to be there")
        return {"server": server, "engine": engines[0]}


class SoakedServer(ServerProcess):
    """One whose pool of blocks is small, and that refuses fields which it does not know."""

    def __init__(self, model: str, kv_bytes_per_token: int, options: Sequence[str]) -> None:
        bounds = ["--max-model-len", str(CONTEXT), "--kv-memory", str(POOL_TOKENS * kv_bytes_per_token)]
        super().__init__(model, ["--name", MODEL, "--strict-parameters", *bounds, *options])


def parse_metrics(text: str) -> dict[str, float]:
    """Samples by name, of those that the model's name alone labels."""
    samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
    return {s.name: s.value for s in samples if set(s.labels) == {"model"}}
