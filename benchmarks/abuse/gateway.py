"""Starts a gateway like the chart does, in a control group with the chart's memory limit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from abuse.clients import begin
from abuse.group import MemoryGroup

START_SECONDS = 30


def table(ports: Mapping[str, int]) -> str:
    """Return a routing table as JSON, with a model for each entry of `ports` and one replica at its port."""
    models = [
        {
            "namespace": "n",
            "name": name,
            "servedNames": [name],
            "created": "2026-01-01T00:00:00Z",
            "message": "",
            "replicas": [{"id": name, "url": f"http://127.0.0.1:{port}", "ready": True}],
        }
        for name, port in ports.items()
    ]
    return json.dumps({"models": models})


def raise_open_files() -> None:
    """Raise the limit of open files to its maximum, for this process and its children."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextlib.asynccontextmanager
async def running(
    group: MemoryGroup,
    ports: Mapping[str, int],
    folder: Path,
    port: int,
    program: Sequence[str] = ("plimsoll_gateway",),
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a gateway in `group` with its default options, which are the chart's, but without lame-duck time. Yield its
    process once it answers. `program`: the module to run, and arguments before the gateway's options.
    """
    file = folder / "table.json"
    file.write_text(table(ports))
    options = ("--table", str(file), "--host", "127.0.0.1", "--port", str(port), "--lame-duck-seconds", "0")
    command = group.command(sys.executable, "-P", "-m", *program, *options, "--log-level", "error")
    process = await asyncio.create_subprocess_exec(*command)
    try:
        async with asyncio.timeout(START_SECONDS):
            while not await _answers(port):  # noqa: ASYNC110  another process cannot set our events
                await asyncio.sleep(0.05)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _answers(port: int) -> bool:
    try:
        stream = await begin(port, b'{"model": "ok"}')
    except OSError:
        return False
    stream.close()
    return stream.status == 200
