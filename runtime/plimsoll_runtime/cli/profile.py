"""`plimsoll profile MODEL`: measures the time of a step by phase and op, and compares it with the machine's limits."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll_runtime.cli.options import add_options, read_options
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.profiling.workload import WORKLOADS, Workload
from plimsoll_runtime.utils import option_values as values

if TYPE_CHECKING:
    from plimsoll_runtime.profiling.run import ProfileOptions

DESCRIPTION = """\
Run the engine in this process on a synthetic batch and report, separately for prefill and decode steps:
  - each phase: schedule, inputs, forward, head, sample, commit; and the phases that a server adds:
    message, detokenise, events (in a server they overlap with the next step; sockets are not included)
  - each op of the forward pass: time, bytes, operations, and its share of the roofline, which is
    the larger of bytes / bandwidth and operations / rate, both measured on this machine
"""
EXPLAINED = "\n".join(f"  {name:13}  {what}" for name, what in WORKLOADS.items())
EPILOG = f"""\
workloads:
{EXPLAINED}

examples:
  plimsoll profile demo://gemma-3-270m
  plimsoll profile MODEL --batch 64 --workload mixed --prompt-len 256 --output-len 256 --trace step.json

Open a trace in https://ui.perfetto.dev. Run nothing else on the machine: other processes use bandwidth,
which distorts the probes too.
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `profile` to the command line."""
    parser = subparsers.add_parser(
        "profile",
        help="measure where the time of a model's steps goes",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="the model: a folder, a .gguf file, demo://NAME or a Hugging Face id"
    )
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--workload", choices=WORKLOADS, default="uniform", help="kind of workload, see below (default: %(default)s)"
    )
    for option, default, what in (
        ("--batch", 1, "number of requests, all sent at once"),
        ("--prompt-len", 128, "number of tokens in each prompt"),
        ("--output-len", 128, "number of tokens to generate for each request, ignoring EOS"),
    ):
        group.add_argument(
            option, type=values.positive, default=default, metavar="N", help=f"{what} (default: {default})"
        )
    group = parser.add_argument_group("results")
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write a Chrome trace of a second, shorter run with torch's own events (the reported figures come from "
        "the first run)",
    )
    group.add_argument(
        "--json", type=Path, metavar="FILE", help="write all figures as JSON, with hardware and versions"
    )
    add_options(parser, "profile", EngineConfig)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Profile, print the report and return 0."""
    # Torch's profiler logs to standard error from C++ when it is loaded; only this variable silences it.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    options = profile_options(args)
    from rich.console import Console

    from plimsoll_runtime.cli.progress import console_progress
    from plimsoll_runtime.profiling.run import run_profile
    from plimsoll_runtime.profiling.table import print_report

    with console_progress(sys.stderr) as progress:
        report = run_profile(options, progress)
    print_report(report, Console(width=None if sys.stdout.isatty() else 120))
    return 0


def profile_options(args: argparse.Namespace) -> ProfileOptions:
    """Return the record of the whole command line. Raises UsageError for options that contradict each other or
    unwritable files.
    """
    from plimsoll_runtime.profiling.run import ProfileOptions

    for option, path in (("--trace", args.trace), ("--json", args.json)):
        if path is not None:
            _check_writable(option, path)
    config = read_options(EngineConfig, args, model=args.model)
    workload = Workload(args.workload, args.batch, args.prompt_len, args.output_len)
    workload.check(config)
    return ProfileOptions(config, workload, args.trace, args.json)


def _check_writable(option: str, path: Path) -> None:
    """Raise UsageError if the file cannot be written, before the run spends minutes."""
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; name a file")
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: the folder {folder} does not exist; create it first")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{option} {path} cannot be written; check its permissions or choose another path")
