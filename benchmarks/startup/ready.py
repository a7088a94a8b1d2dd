"""Waiting until a server that was just started can answer."""

from __future__ import annotations

import http.client
import subprocess
import time

POLL_SECONDS = 0.01


def wait_ready(process: subprocess.Popen[bytes], port: int, seconds: float) -> None:
    """Returns once /health is 200. Raises RuntimeError where the server ends before, TimeoutError after so long."""
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
            pass  # nobody listens yet
        finally:
            connection.close()
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"not ready within {seconds:g} s")
