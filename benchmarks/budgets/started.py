"""Three gateways that share the limits of keys, in front of replicas that answer immediately."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

GATEWAYS = 3
START_SECONDS = 120


def make_keys(folder: Path, requests: int, streams: int) -> dict[str, str]:
    """Create two keys and return their secrets by name: `rate` has a limit of requests per minute, `streams` one of
    open streams.
    """
    (folder / "keys").mkdir()
    made = {}
    for name, terms in {
        "rate": ["--requests-per-minute", str(requests)],
        "streams": ["--streams", str(streams)],
    }.items():
        command = [sys.executable, "-m", "plimsoll_gateway.keys.command", name, "--into", str(folder / "keys"), *terms]
        made[name] = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return made


@contextlib.contextmanager
def running(folder: Path) -> Iterator[list[str]]:
    """Start the gateways, wait until each has found the others, and yield their URLs."""
    (folder / "token").write_text("a-credential-for-the-replicas\n")
    (folder / "secret").write_text("a-secret-of-the-gateways\n")
    ports = _free_ports(2 * GATEWAYS)
    own, peers = ports[:GATEWAYS], [f"127.0.0.1:{port}" for port in ports[GATEWAYS:]]
    shared = ["--table", str(folder / "table.json"), "--host", "127.0.0.1", "--log-level", "warning"]
    shared += ["--keys", str(folder / "keys"), "--gateway-token-file", str(folder / "token")]
    shared += ["--peer-secret-file", str(folder / "secret"), *(f"--peers={peer}" for peer in peers)]
    program = [sys.executable, "-m", "plimsoll_gateway", *shared]
    processes = [
        subprocess.Popen([*program, "--port", str(port), "--peer-address", peer])
        for port, peer in zip(own, peers, strict=True)
    ]
    try:
        urls = [f"http://127.0.0.1:{port}" for port in own]
        for url in urls:
            _until_joined(url)
        yield urls
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [sock.getsockname()[1] for sock in sockets]


def _until_joined(url: str) -> None:
    ends = time.monotonic() + START_SECONDS
    wanted = f"plimsoll_gateway_answering_peers {GATEWAYS - 1}.0".encode()
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/metrics", timeout=5) as page:
            if wanted in page.read():
                return
        if time.monotonic() > ends:
            raise TimeoutError(f"{url} does not find the other gateways")
        time.sleep(0.2)
