"""`python -m gateway.counted [--floor] [--python FILE] [FOLDER ...]`: instructions per request in a gateway with keys,
and iterations of its event loop.

callgrind (of valgrind, which must be installed) counts them, so the result is the same on a busy machine. Requests are
sent one after another, so that none shares an iteration, and timed tasks of the gateway are left out. The folders have
sources of other versions.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gateway import load, started
from gateway.started import Kind

UNASKED, ASKED = 150, 300
_NAMED = re.compile(r"c?fn=\((\d+)\)(?: (.*))?")


def main() -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--floor", action="store_true", help="also measure the minimal relay (gateway.floor)")
    parser.add_argument(
        "--python", metavar="FILE", help="also measure another interpreter, which must find these sources"
    )
    parser.add_argument("folders", nargs="*", type=Path, help="sources of other versions, with keys")
    chosen = parser.parse_args()
    kinds = [Kind("the least relay", keyed=False, floor="asyncio")] if chosen.floor else []
    kinds.append(Kind("these sources", keyed=True, parts=("still",)))
    if chosen.python is not None:
        name = f"these sources, {started.version_of(chosen.python)}"
        kinds.append(Kind(name, keyed=True, parts=("still",), python=chosen.python))
    kinds += [Kind(str(folder), keyed=True, source=folder, parts=("still",)) for folder in chosen.folders]
    for kind in kinds:
        instructions, rounds = _counted(kind)
        print(f"{kind.name}: {instructions:,.0f} instructions and {rounds:.2f} rounds of the event loop a request")
    return 0


def _counted(kind: Kind) -> tuple[float, float]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = stack.enter_context(started.replicas(0))
        (folder / "table.json").write_text(started.table(ports))
        (folder / "token").write_text("a-credential-for-the-replicas\n")
        headers = started.make_keys(folder / "keys", 20)
        written = folder / "counted"
        under = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={written}", "--instr-atstart=no", "-q")
        gateway = stack.enter_context(started.running(kind.under_program(under), folder, 18300, 0, ports))
        wanted = load.requests(UNASKED + ASKED, headers)
        client = stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port)))
        _ask(client, wanted[:UNASKED])  # the first requests fill caches
        _control("--instr=on", gateway.pid)
        _ask(client, wanted[UNASKED:])
        _control("--dump", gateway.pid)
        instructions, polls = _read(Path(f"{written}.1"))
        return instructions / ASKED, polls / ASKED


def _ask(client: socket.socket, wanted: Sequence[bytes]) -> None:
    """Send requests one by one, each after the response to the previous one."""
    with client.makefile("rb") as answers:
        for request in wanted:
            client.sendall(request)
            status, length = answers.readline(), 0
            while (line := answers.readline().lower()) != b"\r\n":
                length = int(line.split()[1]) if line.startswith(b"content-length:") else length
            assert status.startswith(b"HTTP/1.1 200 "), status
            answers.read(length)


def _read(profile: Path) -> tuple[int, int]:
    """Return the instructions in a callgrind profile, and how often the process has waited for events."""
    names: dict[str, str] = {}
    total, polls, called = 0, 0, ""
    for line in profile.read_text().splitlines():
        if (found := _NAMED.match(line)) is not None:
            names.setdefault(found[1], found[2] or "")
            called = names[found[1]]
        elif line.startswith("calls=") and called == "epoll_wait":
            polls += int(line[6:].split()[0])
        elif line.startswith("totals: "):
            total = int(line.split()[1])
    return total, polls


def _control(what: str, pid: int) -> None:
    subprocess.run(["callgrind_control", what, str(pid)], check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
