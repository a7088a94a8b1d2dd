"""`plimsoll host` in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

START_SECONDS = 240


@dataclass(frozen=True)
class HostProcess:
    """A running `plimsoll host`."""

    process: subprocess.Popen[bytes]
    url: str
    """Port of the API of the models."""
    host_url: str
    """Port of the host API."""

    def family(self) -> list[psutil.Process]:
        """Return the host's child processes and theirs: engines and standby processes."""
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def running_host(
    log: Path, *options: str, environment: Mapping[str, str] = os.environ, address: str = "127.0.0.1"
) -> Iterator[HostProcess]:
    """Run a host on this address until it is ready; it is killed at the end, with its engines. `log` gets its
    output."""
    command = [sys.executable, "-m", "plimsoll_runtime", "host", "--host-port", "0", *options]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    family: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + START_SECONDS
        while " ready: " not in (text := log.read_text()):
            assert process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        urls = re.findall(rf"(?:listening|host API) on (http://{re.escape(address)}:\d+)", text)
        assert len(urls) == 2, text
        host = HostProcess(process, *urls)
        yield host
        if process.poll() is None:
            family = host.family()
    finally:
        process.kill()
        process.wait()
    assert not psutil.wait_procs(family, timeout=120)[1], "engines end with their host"
