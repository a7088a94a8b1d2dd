"""`plimsoll down`: ends a `plimsoll up` of this machine."""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from plimsoll_runtime.cli import values
from plimsoll_runtime.errors import UsageError

if TYPE_CHECKING:
    from plimsoll_runtime.local.run_folder import RunFolder

POLL_SECONDS = 0.1
WAIT_SECONDS = 60.0


def add_down_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `down` to the command line."""
    parser = subparsers.add_parser(
        "down",
        help="stop what `plimsoll up` runs on this machine",
        description="Stop a `plimsoll up` of this user and wait until it has ended; running answers may finish.",
        allow_abbrev=False,
    )
    parser.add_argument("--port", type=values.port, help="the run of this port (default: the only one)")
    parser.add_argument("--now", action="store_true", help="do not wait for running answers")
    parser.set_defaults(func=run_down)


def run_down(args: argparse.Namespace) -> int:
    """Stop one run; 0 once it is gone, 1 if there is none. Raises UsageError where several could be meant."""
    from plimsoll_runtime.local.run_folder import RunFolder, all_runs

    runs = all_runs() if args.port is None else [RunFolder(args.port)]
    if len(runs) > 1:
        raise UsageError(f"several run: say which with --port ({', '.join(str(run.port) for run in runs)})")
    record = runs[0].read() if runs else None
    if record is None:
        where = "" if args.port is None else f" on port {args.port}"
        print(f"nothing runs{where}")
        return 1
    _signal(record["pid"], signal.SIGTERM)
    if args.now:  # the second signal is another one: two of a kind may arrive as one
        _signal(record["pid"], signal.SIGINT)
    if not _wait(runs[0]):
        print(f"pid {record['pid']} has not ended within {WAIT_SECONDS:g} s; try `plimsoll down --now`")
        return 1
    print(f"stopped {record['url']}")
    return 0


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has ended in this moment


def _wait(run: RunFolder) -> bool:
    deadline = time.monotonic() + WAIT_SECONDS
    while run.is_running():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
