"""Gateways of several kinds, each bound to one CPU core, with the same replicas."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

REPLICAS = 4
START_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to start a gateway. `keyed`: with API keys; `source`: a folder of other sources; `parts`: arguments of
    `gateway.other`; `floor`: event loop of the minimal relay (`gateway.floor`), which runs instead of a gateway;
    `under`: program and arguments that run the interpreter, such as valgrind; `python`: interpreter.
    """

    name: str
    keyed: bool
    parts: tuple[str, ...] = ()
    source: Path | None = None
    floor: str = ""
    under: tuple[str, ...] = ()
    python: str = sys.executable

    def under_program(self, program: tuple[str, ...]) -> Kind:
        """Return the same kind with this value of `under`."""
        return replace(self, under=program)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway."""

    kind: Kind
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the main thread of its process so far."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def resident_mib(self) -> float:
        """Return its resident memory in MiB."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def version_of(python: str) -> str:
    """Return an interpreter's version, e.g. "Python 3.11.2"."""
    return subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def table(ports: Sequence[int]) -> str:
    """Return a routing table with one model and a replica per port."""
    replicas = [{"id": f"r{port}", "url": f"http://127.0.0.1:{port}", "ready": True} for port in ports]
    model = {"namespace": "n", "name": "m", "servedNames": ["m"], "created": "2026-01-01T00:00:00Z", "message": ""}
    return json.dumps({"models": [model | {"replicas": replicas}]})


def make_keys(folder: Path, count: int) -> list[bytes]:
    """Create keys with unreachable limits, and return the line of an Authorization header for each."""
    folder.mkdir()
    headers = []
    for number in range(count):
        terms = ["--requests-per-minute", "1000000", "--tokens-per-minute", "1000000000", "--streams", "100000"]
        printed = subprocess.run(
            [sys.executable, "-m", "plimsoll_gateway.keys.command", f"k{number}", "--into", str(folder), *terms],
            capture_output=True,
            text=True,
            check=True,
        )
        headers.append(f"authorization: Bearer {printed.stdout.strip()}\r\n".encode())
    return headers


@contextlib.contextmanager
def replicas(core: int) -> Iterator[list[int]]:
    """Start replicas that answer immediately, and yield their ports."""
    command = [sys.executable, "-m", "gateway.backend", str(core)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(REPLICAS)]
    try:
        yield [int(process.stdout.readline()) for process in processes if process.stdout is not None]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def running(kind: Kind, folder: Path, port: int, core: int, replicas: Sequence[int]) -> Iterator[Gateway]:
    """Run a gateway of this kind, or the minimal relay, on CPU core `core`. Yield it once /health answers."""
    options = ["--table", str(folder / "table.json"), "--host", "127.0.0.1", "--port", str(port)]
    if kind.keyed:
        options += ["--keys", str(folder / "keys"), "--gateway-token-file", str(folder / "token")]
    environment = dict(os.environ)
    if kind.source is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(kind.source), environment.get("PYTHONPATH", "")])
    program = ["gateway.other", *kind.parts, "--"] if kind.parts else ["plimsoll_gateway"]
    arguments = [*program, *options, "--log-level", "error"]
    if kind.floor:
        arguments = ["gateway.floor", kind.floor, str(port), *map(str, replicas)]
    command = ["taskset", "-c", str(core), *kind.under, kind.python, "-m", *arguments]
    process = subprocess.Popen(command, env=environment)
    try:
        _until_healthy(port)
        yield Gateway(kind, port, process.pid)
    finally:
        process.kill()
        process.wait()


def _until_healthy(port: int) -> None:
    ends = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            return
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.1)
