"""`python -m gateway.counted [FOLDER ...]`: the instructions that a request takes in a gateway with keys.

callgrind (of valgrind, which must be installed) counts them, so that they are the same on a machine that is busy. The
folders are sources of other versions. What a gateway does beside requests is taken off by asking twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

from gateway import load, started
from gateway.started import Kind

RATE = 20.0  # what callgrind keeps up with
FEW, MANY = 150, 450


def main() -> int:
    """Count, and print."""
    for source in [None, *map(Path, sys.argv[1:])]:
        few, many = _counted(source, FEW), _counted(source, MANY)
        print(f"{source or 'these sources'}: {(many - few) / (MANY - FEW):,.0f} instructions a request")
    return 0


def _counted(source: Path | None, requests: int) -> int:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = stack.enter_context(started.replicas(0))
        (folder / "table.json").write_text(started.table(ports))
        (folder / "token").write_text("a-credential-for-the-replicas\n")
        headers = started.make_keys(folder / "keys", 20)
        written = folder / "counted"
        under = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={written}", "--instr-atstart=no", "-q")
        kind = Kind("counted", keyed=True, source=source, under=under)
        gateway = stack.enter_context(started.running(kind, folder, 18300, 0, ports))
        wanted = load.requests(requests, headers)
        _ask(gateway.port, wanted[:FEW])  # the first ones make what is kept
        _control("--instr=on", gateway.pid)
        _ask(gateway.port, wanted)
        _control("--dump", gateway.pid)
        totals = [line for line in Path(f"{written}.1").read_text().splitlines() if line.startswith("totals: ")]
        return int(totals[0].split()[1])


def _ask(port: int, wanted: list[bytes]) -> None:
    _, failures = asyncio.run(load.steady(port, RATE, wanted))
    assert not failures, f"{failures} requests failed"


def _control(what: str, pid: int) -> None:
    subprocess.run(["callgrind_control", what, str(pid)], check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
