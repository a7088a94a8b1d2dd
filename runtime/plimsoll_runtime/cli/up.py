"""`plimsoll up FILE...`: the models of ModelDeployment files on this machine, behind one OpenAI endpoint."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from plimsoll_runtime.cli import values
from plimsoll_runtime.errors import UsageError

DRAIN_SECONDS = 10.0


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `up` to the command line."""
    parser = subparsers.add_parser(
        "up",
        help="run ModelDeployment files on this machine, without a cluster",
        description="Run the models of ModelDeployment files on this machine behind one OpenAI endpoint, as a "
        "cluster would. The files are checked against the same schema as the cluster's.",
        allow_abbrev=False,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="YAML of one or more ModelDeployments; - for stdin")
    parser.add_argument("--host", default="127.0.0.1", help="address of the endpoint (default: %(default)s)")
    parser.add_argument(
        "--port", type=values.port, default=8000, help="port of the endpoint, 0 for any (default: %(default)s)"
    )
    parser.add_argument(
        "--ask", metavar="QUESTION", help="once ready, ask the first model this and print the answer (to stdout)"
    )
    parser.add_argument("--once", action="store_true", help="end after the answer to --ask; 0 if there was one")
    parser.add_argument(
        "--drain-seconds",
        type=values.seconds,
        default=DRAIN_SECONDS,
        metavar="S",
        help="how long running answers may go on after Ctrl-C (default: %(default)g)",
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace, serve: Sequence[str] | None = None) -> int:
    """Run until a signal or, with --once, until the answer; returns the exit code. Raises UsageError.

    `serve` replaces the command that runs one model.
    """
    from rich.console import Console

    from plimsoll_runtime.local.launch import SERVE
    from plimsoll_runtime.local.model import load_models
    from plimsoll_runtime.local.ports import base_url, listen
    from plimsoll_runtime.local.run import Run, RunOptions
    from plimsoll_runtime.local.state import RunState
    from plimsoll_runtime.weights.demo import unseen_terms

    if args.once and args.ask is None:
        raise UsageError("--once ends after the answer to a question: give one with --ask")
    models = load_models(args.files, sys.stdin)
    if args.ask is not None and models[0].replicas == 0:
        raise UsageError(f"--ask: {models[0].name} has spec.replicas: 0, nobody would answer")
    console = Console(stderr=True, highlight=False)
    for note in (note for model in models for note in model.notes):
        console.print(note, style="yellow", markup=False, soft_wrap=True)
    for terms in dict.fromkeys(unseen_terms(model.source) for model in models):
        if terms is not None:  # the runtime says so too, in its log, where nobody looks
            console.print(terms, markup=False, soft_wrap=True)
    with listen(args.host, args.port) as sock:
        port = sock.getsockname()[1]
        options = RunOptions(
            models=tuple(models),
            url=base_url(args.host, port),
            question=args.ask,
            once=args.once,
            drain_seconds=args.drain_seconds,
            serve=SERVE if serve is None else serve,
        )
        state = RunState(port)
        with state.held():
            return asyncio.run(Run(options, sock, state, console).go())
