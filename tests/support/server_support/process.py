"""`plimsoll serve` in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import psutil


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen[str]
    client: openai.OpenAI
    termination_log: Path
    lines: list[str]

    @property
    def url(self) -> str:
        return str(self.client.base_url).removesuffix("/v1/")

    def end(self) -> int:
        """Read the output until the process ends; return its exit code."""
        assert self.process.stderr is not None
        self.lines.extend(self.process.stderr)
        return self.process.wait(120)

    def until_it_says(self, words: str) -> None:
        """Read the output up to a line with these words."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if words in line:
                return
        raise AssertionError(f"it ended without {words!r}: {self.lines}")

    def engine(self) -> psutil.Process:
        (found,) = psutil.Process(self.process.pid).children()
        return found

    def metrics(self) -> set[str]:
        return set(httpx.get(f"{self.url}/metrics", timeout=120).text.splitlines())


@contextmanager
def serving(model: Path | str, log: Path, *options: str) -> Iterator[Served]:
    """Serve a small model named "tiny" until it is ready; the server is killed at the end. `log` gets its last
    output."""
    command = [sys.executable, "-m", "plimsoll_runtime", "serve", str(model), "--name", "tiny", "--port", "0"]
    command += ["--kv-memory", "8MiB", "--threads", "1", *options]
    environment = os.environ | {"PLIMSOLL_TERMINATION_LOG": str(log)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if " ready: " in line:
                break
        port = re.search(r"listening on http://127.0.0.1:(\d+)", "".join(lines))
        assert port is not None, lines
        url = f"http://127.0.0.1:{port.group(1)}/v1"
        with openai.OpenAI(base_url=url, api_key="-", max_retries=0) as client:
            yield Served(process, client, log, lines)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
