"""`plimsoll status`: what runs on this machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.cli import values


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `status` to the command line."""
    parser = subparsers.add_parser(
        "status",
        help="show what `plimsoll up` runs on this machine",
        description="Show each `plimsoll up` of this user: endpoint, models, replicas, logs. Exits with 1 if "
        "there is none.",
        allow_abbrev=False,
    )
    parser.add_argument("--port", type=values.port, help="only the run of this port")
    parser.add_argument("--json", action="store_true", help="the records as JSON, for programs")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print the records; 1 if there are none."""
    from plimsoll_runtime.local.state import RunState, all_runs

    runs = all_runs() if args.port is None else [RunState(args.port)]
    records = [record for record in (run.read() for run in runs) if record is not None]
    if args.json:
        print(json.dumps(records, indent=2))
    elif not records:
        where = "" if args.port is None else f" on port {args.port}"
        print(f"nothing runs{where}; start something with `plimsoll up FILE`")
    else:
        print("\n\n".join(map(_describe, records)))
    return 0 if records else 1


def _describe(record: Mapping[str, Any]) -> str:
    lines = [f"{record['url']}/v1 (pid {record['pid']}, since {record['began']})"]
    for model in record["models"]:
        lines.append(f"  {model['namespace']}/{model['name']} as {', '.join(model['servedNames'])}")
        lines += [_line(replica) for replica in model["replicas"]]
    return "\n".join([*lines, _line(record["gateway"])])


def _line(entry: Mapping[str, Any]) -> str:
    restarts = f", restarted {entry['restarts']} times" if entry["restarts"] else ""
    pid = "" if entry["pid"] is None else f" (pid {entry['pid']}{restarts})"
    return f"    {entry['slot']}: {entry['detail']}{pid}, log {entry['log']}"
