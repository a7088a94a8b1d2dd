"""The soaked server: `plimsoll serve` started like by a user, its processes and its counters."""

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
"""Four of the longest requests fill it, so sequences are preempted and cached prefixes evicted."""
LOG_TAIL = 3000


@dataclass(frozen=True, slots=True)
class Footprint:
    """Resident bytes, open file descriptors and threads of a process."""

    resident: int
    descriptors: int
    threads: int


class ServerProcess:
    """A server's process on a free loopback port, and its engine's process. The constructor waits until the server is
    ready; it raises RuntimeError if the server ends or takes too long.
    """

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
        """Return footprints of the processes "server" and "engine", if they run."""
        found = {}
        for name, process in self._processes.items():
            try:
                with process.oneshot():
                    found[name] = Footprint(process.memory_info().rss, process.num_fds(), process.num_threads())
            except psutil.NoSuchProcess:
                continue
        return found

    def metrics(self) -> dict[str, float]:
        """Return every series of /metrics without labels other than those of the model."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            return parse_metrics(response.read().decode())

    def stop(self) -> int:
        """Send SIGTERM and return the exit code. Raises TimeoutExpired if the process does not end."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_bytes()[-LOG_TAIL:].decode(errors="replace")

    def close(self) -> None:
        """Delete the log."""
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
        except OSError:  # the port is not open yet, or loading delays the response
            return False
        return bool(report["status"] == "ready")

    def _find_processes(self) -> dict[str, psutil.Process]:
        server = psutil.Process(self._process.pid)
        engines = server.children()
        if len(engines) != 1:
            raise RuntimeError(f"the server has {len(engines)} child processes; one engine was to be there")
        return {"server": server, "engine": engines[0]}


class SoakedServer(ServerProcess):
    """A server with a small pool of blocks, which refuses unknown fields."""

    def __init__(self, model: str, kv_bytes_per_token: int, options: Sequence[str]) -> None:
        bounds = ["--max-model-len", str(CONTEXT), "--kv-memory", str(POOL_TOKENS * kv_bytes_per_token)]
        super().__init__(model, ["--name", MODEL, "--strict-parameters", *bounds, *options])


def parse_metrics(text: str) -> dict[str, float]:
    """Return samples by name that have no labels except those of the model."""
    samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
    return {s.name: s.value for s in samples if set(s.labels) == {"namespace", "model"}}
