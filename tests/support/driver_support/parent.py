"""A parent process that starts an engine, for tests that kill it."""

from __future__ import annotations

import os
import subprocess
import sys

PARENT = """
import sys, time
from plimsoll_runtime.driver.process.child import EngineChild
from plimsoll_runtime.engine.config import EngineConfig
if sys.argv[1] == "stands-by":
    import asyncio
    from plimsoll_runtime.driver.process.standby import ForkServer
    server = ForkServer.spawn()
    print(server.pid)
    print(asyncio.run(server.fork()).pid, flush=True)
    time.sleep(60)
child = EngineChild(EngineConfig(model=sys.argv[1]), "fake_engine:build")
while (event := child.receive()) is None or type(event).__name__ != sys.argv[2]:
    time.sleep(0.01)
if sys.argv[3] == "forks":
    import os
    if (pid := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    print(pid)
print(child.pid, flush=True)
time.sleep(60)
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a parent of an engine."""
    command = [sys.executable, "-c", PARENT, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))


def read_line(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline()
