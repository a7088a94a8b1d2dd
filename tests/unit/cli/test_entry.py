"""A process that gets SIGTERM while it starts, like the first process of a container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

STUCK = """
import ctypes, sys
library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
library.pthread_mutex_lock(mutex)
print("stuck", file=sys.stderr, flush=True)
library.pthread_mutex_lock(mutex)
"""
"""Blocks without letting Python handlers run, like a library that reads a very large file."""


DEVICE_FAILED = """
import atexit, sys, time
from plimsoll_runtime.cli import entry, main
atexit.register(time.sleep, 1000)
main.main = lambda: print("told") or int(sys.argv[1])
sys.exit(entry.main())
"""
"""Simulates a driver that does not answer at exit."""


def test_the_end_waits_for_no_device_that_has_failed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DEVICE_FAILED, "8"], check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (8, "told\n"), done.stderr


@pytest.mark.long
def test_sigterm_ends_it_whatever_it_is_doing(tmp_path: Path) -> None:
    """SIGTERM is ignored at first, because the kernel drops signals for which a container's first process has no
    handler.
    """
    (tmp_path / "uvicorn.py").write_text(STUCK)
    process = subprocess.Popen(
        [
            "sh",
            "-c",
            'trap "" TERM; exec "$@"',
            "sh",
            sys.executable,
            "-m",
            "plimsoll_runtime",
            "serve",
            "demo://gemma-3-270m",
            "--port",
            "0",
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    try:
        assert process.stderr is not None
        assert next(process.stderr) == "stuck\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
