"""Common command-line options of all benchmarks, and writing of results."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provenance import provenance

ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Options:
    """Number of rounds for medians, computing threads of every system, and `scale` of the work: below 1 it is a quick
    look, not a result. `only`: names of workloads or benchmarks, () for all. `json`: file for the result.
    """

    rounds: int = ROUNDS
    threads: int = 1
    scale: float = 1.0
    only: tuple[str, ...] = ()
    json: Path | None = None


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the common options."""
    made = argparse.ArgumentParser(description=doc)
    made.add_argument("--rounds", type=_at_least_one, default=ROUNDS, help=f"medians are reported (default {ROUNDS})")
    cores = len(os.sched_getaffinity(0))
    made.add_argument("--threads", type=_at_least_one, default=cores, help="computing threads of every system")
    made.add_argument("--scale", type=_share, default=1.0, help="less work for a quick look, e.g. 0.1 (default 1)")
    made.add_argument("--only", action="append", default=[], metavar="NAME", help="only this one (repeatable)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the result, with hardware, versions, command")
    return made


def from_arguments(args: argparse.Namespace) -> Options:
    """Return the options on the command line."""
    return Options(args.rounds, args.threads, args.scale, tuple(args.only), args.json)


def write(options: Options, results: Mapping[str, Any]) -> None:
    """Write the result with its provenance, if a file was requested."""
    if options.json is None:
        return
    settings = {"rounds": options.rounds, "threads": options.threads, "scale": options.scale}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"run": {**provenance(), **settings}, **results}, indent=2) + "\n")


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0 and at most 1")
    return value
