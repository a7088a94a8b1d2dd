"""Common parts of `make check-gpu` and `make bench-gpu`: options and exit status."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu.harness import wheels
from gpu.harness.ledger import Ledger, read
from gpu.harness.part import Part
from gpu.harness.session import Session, told
from gpu.harness.sources import ROOT, digest

ASK = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
WHO = "name,driver_version,memory.total"
NO_GPU = 2
"""Exit code of a call that did nothing because there is no device."""

Ask = Callable[[Sequence[str]], str]


def options(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that both commands have."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--part", action="append", default=[], metavar="NAME", help="only this one (repeatable)")
    parser.add_argument("--list", action="store_true", help="list the parts with their status, and do nothing")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "gpu", help="folder for state between calls")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="where results go")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="folder of wheels for missing packages")
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="time limit of the whole call in seconds; the next call resumes"
    )
    parser.add_argument("--anyway", action="store_true", help="run parts even if a package is missing")
    parser.add_argument("--again", action="store_true", help="run completed parts again from the start")
    return parser


def chosen(parser: argparse.ArgumentParser, args: argparse.Namespace, parts: Sequence[Part]) -> list[Part]:
    """Return the requested parts, in order. Exits the program for an unknown name."""
    known = [part.name for part in parts]
    if unknown := sorted(set(args.part) - set(known)):
        parser.error(f"no part is called {', '.join(unknown)}; there is {', '.join(known)}")
    return [part for part in parts if part.name in args.part or not args.part]


def begin(name: str, args: argparse.Namespace, device: str, *, processes: int = 0) -> Session:
    """Install missing packages, report those that stay missing, and return the session. Raises ValueError if the folder
    has no wheels, or pip fails.
    """
    site = args.state.resolve() / "site"
    if str(site) not in sys.path:
        sys.path.insert(0, str(site))
    if args.wheels is not None:
        made = wheels.install(args.wheels, site)
        importlib.invalidate_caches()
        print(f"installed from {args.wheels}: {', '.join(made) or 'nothing, all of it is there'}", flush=True)
    lacking = wheels.missing(wheels.required())
    for package in lacking:
        print(f"missing: {package}", flush=True)
    return Session(
        name,
        args.state.resolve(),
        args.out.resolve(),
        run_on(device),
        site if site.is_dir() else None,
        () if args.anyway else lacking,
        args.limit,
        args.again,
        processes,
    )


def ledger_of(name: str, args: argparse.Namespace) -> Ledger:
    """Return the results of earlier calls. Raises ValueError for a file that is not a ledger."""
    return read(args.state.resolve() / f"{name}.json")


def device_name(ask: Ask | None = None) -> str:
    """Return torch's name of the device, read by a separate process; "" without a device. Raises RuntimeError if torch
    cannot be asked.
    """
    try:
        return (ask or _output)([sys.executable, "-c", ASK]).strip()
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        raise RuntimeError(f"torch cannot be asked for a device: {detail.strip().splitlines()[-1]}") from error


def run_on(device: str, ask: Ask | None = None) -> dict[str, Any]:
    """Return date, hardware and versions, for the results."""
    try:
        driver = (ask or _output)(["nvidia-smi", f"--query-gpu={WHO}", "--format=csv,noheader"]).strip()
    except (OSError, subprocess.SubprocessError):
        driver = "nvidia-smi says nothing"
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": device,
        "driver": driver,
        "python": sys.version.split()[0],
        "versions": {name: wheels.installed(name) for name in ("torch", "triton", "transformers", "numpy")},
    }


def listing(parts: Sequence[Part], ledger: Ledger) -> str:
    """Return a line for each part: name, time limit, description, status."""
    current = digest()
    lines = []
    for part in parts:
        record = ledger.parts.get(part.name)
        became = "not run" if record is None else told(record, current)
        lines.append(f"{part.name:<16} at most {part.seconds} s; {part.proves}\n{'':<16} {became}")
    return "\n".join(lines)


def code_of(parts: Sequence[Part], ledger: Ledger) -> int:
    """Return 0 if all parts are done, else 1."""
    records: Mapping[str, Any] = ledger.parts
    return 0 if all(part.name in records and records[part.name].done for part in parts) else 1


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
