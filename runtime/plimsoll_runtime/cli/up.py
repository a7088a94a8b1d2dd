"""`plimsoll up FILE|SOURCE...` runs models on this machine behind one OpenAI endpoint; `plimsoll down` stops them."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils import option_values as values

if TYPE_CHECKING:
    from rich.console import Console

    from plimsoll_runtime.local.model import LocalModel
    from plimsoll_runtime.local.pool import LocalPool
    from plimsoll_runtime.local.run_folder import RunFolder

DRAIN_SECONDS = 10.0


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `up` to the command line."""
    parser = subparsers.add_parser(
        "up",
        help="run models or ModelDeployment files on this machine, without a cluster",
        description="Run models on this machine behind one OpenAI endpoint, like a cluster would. Files are checked "
        "against the cluster's schema. For each model source, the equivalent ModelDeployment is printed.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE|SOURCE",
        help="YAML file with ModelDeployments and at most one RuntimePool, - for stdin; or a model: demo://NAME, "
        "hf://ORG/NAME[@REVISION][:FILE], a folder with config.json, a .gguf file",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=values.port, default=8000, help="port to listen on, 0 for a free one (default: %(default)s)"
    )
    _add_sharing(parser)
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the code in the repositories of models whose spec allows it (spec.model.trustRemoteCode). The code "
        "has all your rights",
    )
    parser.add_argument(
        "--ask", metavar="QUESTION", help="once ready, ask the first model this question and print its output to stdout"
    )
    parser.add_argument(
        "--once", action="store_true", help="exit after the output of --ask, with 0 if the model answered"
    )
    parser.add_argument(
        "--drain-seconds",
        type=values.seconds,
        default=DRAIN_SECONDS,
        metavar="S",
        help="time that running requests have to finish after Ctrl-C (default: %(default)g)",
    )
    parser.set_defaults(func=run)


def _add_sharing(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which models share a process, and how much memory they get."""
    sharing = parser.add_mutually_exclusive_group()
    sharing.add_argument(
        "--together",
        action="store_const",
        const=True,
        help="run all models under one host process that keeps used models in memory and lets the others sleep "
        "(default: if the models need more memory than there is)",
    )
    sharing.add_argument(
        "--apart", dest="together", action="store_const", const=False, help="run each replica in a process of its own"
    )
    parser.add_argument(
        "--line",
        type=values.memory,
        metavar="SIZE",
        help="memory for all models together: 60%%, or an amount such as 2GiB; implies --together unless there is a "
        "RuntimePool (default: 90%%)",
    )
    parser.add_argument(
        "--sleepers",
        type=values.amount,
        metavar="SIZE",
        help="memory for the weights of sleeping models, which then wake without reading files (default: a quarter of "
        "the free memory, or the RuntimePool's value)",
    )


def run(args: argparse.Namespace, serve: Sequence[str] | None = None, host: Sequence[str] | None = None) -> int:
    """Run until a signal or, with --once, until the model has answered. Return the exit code. Raises UsageError.

    `serve` and `host` replace the commands that run one model and several models (for tests).
    """
    from rich.console import Console

    from plimsoll_runtime.local.host_sharing import memory_left
    from plimsoll_runtime.local.model import load_objects
    from plimsoll_runtime.local.pool import place, read_pools
    from plimsoll_runtime.local.processes.launch import HOST, SERVE, TURNS, base_url, listen
    from plimsoll_runtime.local.run import Run, RunOptions
    from plimsoll_runtime.local.run_folder import RunFolder
    from plimsoll_runtime.local.source import manifests_of

    if args.once and args.ask is None:
        raise UsageError("--once exits after the output of --ask; add --ask QUESTION")
    if args.together is False and (args.line is not None or args.sleepers is not None):
        raise UsageError("--line and --sleepers apply to models that share a process; leave out --apart")
    made = manifests_of(args.files)
    loaded, others = load_objects(args.files, sys.stdin, made)
    models, pool = place(loaded, read_pools(others, memory_left()))
    _check(args, models, pool)
    console = Console(stderr=True, highlight=False)
    for argument, text in made.items():
        console.print(
            f"# {argument} as a file, for `plimsoll up` and `kubectl apply`:\n{text}", markup=False, soft_wrap=True
        )
    models = _in_pool(models) if pool is not None else _shared(models, args, console)
    _print_notes(models, pool, console)
    with listen(args.host, args.port) as sock:
        port = sock.getsockname()[1]
        options = RunOptions(
            models=tuple(models),
            url=base_url(args.host, port),
            question=args.ask,
            once=args.once,
            drain_seconds=args.drain_seconds,
            serve=SERVE if serve is None else serve,
            host=HOST if host is None else host,
            host_options=(*(TURNS if pool is None else pool.arguments), *_host_options(args, pool)),
            pool="" if pool is None else pool.name,
        )
        folder = RunFolder(port)
        with folder.held():
            return asyncio.run(Run(options, sock, folder, console).go())


def _check(args: argparse.Namespace, models: Sequence[LocalModel], pool: LocalPool | None) -> None:
    """Raise UsageError if the options contradict the models or the pool."""
    if not models:
        raise UsageError(f"{', '.join(args.files)}: no ModelDeployment found, only a RuntimePool; add its models")
    if pool is not None and args.together is not None:
        raise UsageError(
            f"--together and --apart have no effect with the RuntimePool {pool.name}: the spec.placement of each "
            "model says whether it shares the pool; leave the option out"
        )
    if args.ask is not None and models[0].replicas == 0:
        raise UsageError(f"--ask: {models[0].name} has spec.replicas: 0, so no replica can answer; set at least 1")
    if not args.trust_remote_code and (bringing := [model.name for model in models if model.brings_code]):
        raise UsageError(
            f"{', '.join(bringing)}: spec.model.trustRemoteCode runs code from the model's repository; if you "
            "trust its authors, add --trust-remote-code"
        )


def _print_notes(models: Sequence[LocalModel], pool: LocalPool | None, console: Console) -> None:
    from plimsoll_runtime.weights.sources.demo import unseen_terms

    for note in (*(() if pool is None else pool.notes), *(note for model in models for note in model.notes)):
        console.print(note, style="yellow", markup=False, soft_wrap=True)
    for terms in dict.fromkeys(unseen_terms(model.source) for model in models):
        if terms is not None:  # the runtime logs the terms too, but its log goes to a file
            console.print(terms, markup=False, soft_wrap=True)


def _shared(models: list[LocalModel], args: argparse.Namespace, console: Console) -> list[LocalModel]:
    """Return the models, with `in_host` set if they share a process. If this was decided automatically, print why."""
    from plimsoll_runtime.local.host_sharing import choose, share

    implied = True if args.line is not None or args.sleepers is not None else args.together
    choice = choose(models, implied)
    if choice.why:
        console.print(choice.why, style="yellow", markup=False, soft_wrap=True)
    return list(share(models)) if choice.together else models


def _in_pool(models: list[LocalModel]) -> list[LocalModel]:
    """Return the models; those of the pool get notes on fields that have no effect there."""
    from plimsoll_runtime.local.host_sharing import share

    shared = iter(share([model for model in models if model.in_host]))
    return [next(shared) if model.in_host else model for model in models]


def _host_options(args: argparse.Namespace, pool: LocalPool | None) -> tuple[str, ...]:
    """Return the options of the shared process: --line and --sleepers. Without a pool, sleepers default to a quarter of
    the free memory.
    """
    from plimsoll_runtime.local.host_sharing import memory_left

    sleepers = memory_left() // 4 if args.sleepers is None and pool is None else args.sleepers
    return (
        *(() if args.line is None else ("--line", args.line)),
        *(() if sleepers is None else ("--sleepers", str(sleepers))),
    )


POLL_SECONDS = 0.1
WAIT_SECONDS = 60.0


def add_down_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `down` to the command line."""
    parser = subparsers.add_parser(
        "down",
        help="stop a running `plimsoll up` of this machine",
        description="Stop a `plimsoll up` of this user and wait until it has exited. Running requests may finish.",
        allow_abbrev=False,
    )
    parser.add_argument("--port", type=values.port, help="port of the `plimsoll up` to stop (default: the only one)")
    parser.add_argument("--now", action="store_true", help="do not wait for running requests")
    parser.set_defaults(func=run_down)


def run_down(args: argparse.Namespace) -> int:
    """Stop one run and return 0 once it has ended, or 1 if there is none. Raises UsageError if several run."""
    from plimsoll_runtime.local.run_folder import RunFolder, all_runs

    runs = all_runs() if args.port is None else [RunFolder(args.port)]
    if len(runs) > 1:
        raise UsageError(
            f"several `plimsoll up` are running; choose one with --port ({', '.join(str(run.port) for run in runs)})"
        )
    record = runs[0].read() if runs else None
    if record is None:
        where = "" if args.port is None else f" on port {args.port}"
        print(f"no `plimsoll up` is running{where}")
        return 1
    _signal(record["pid"], signal.SIGTERM)
    if args.now:  # a different signal: two equal pending signals merge into one
        _signal(record["pid"], signal.SIGINT)
    if not _wait(runs[0]):
        print(f"pid {record['pid']} has not exited within {WAIT_SECONDS:g} s; try `plimsoll down --now`")
        return 1
    print(f"stopped {record['url']}")
    return 0


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has already exited


def _wait(run: RunFolder) -> bool:
    deadline = time.monotonic() + WAIT_SECONDS
    while run.is_running():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
