"""Waits until a started server answers."""

from __future__ import annotations

import http.client
import subprocess
import time

POLL_SECONDS = 0.01


def wait_ready(process: subprocess.Popen[bytes], port: int, seconds: float) -> None:
    """Return once /health is 200. Raises RuntimeError if the server ends before, TimeoutError after `seconds`."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass  # the port is not open yet
        finally:
            connection.close()
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"not ready within {seconds:g} s")
