"""`plimsoll status`: shows the running `plimsoll up` processes of this machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from plimsoll_runtime.local.text import (
    cut,
    duration_text,
    findings_lines,
    line_width,
    memory_line,
    placement_line,
    table,
)
from plimsoll_runtime.utils import option_values as values

DESCRIPTION = """\
Show each running `plimsoll up` of this user: its endpoint, and one row for
each model.

  MODEL      name for requests
  STATE      state of the model; with several replicas, how many are ready
  MEMORY     resident memory of its processes. For models that share a
             process: the granted memory, or the memory used while asleep
  REQUESTS   requests in flight. For models that share a process also the
             requests that wait for the model to wake
  TOKENS/S   tokens generated per second, measured for one second
  IDLE       time since the last request ended; - while one is in flight

Processes that do not serve are listed below the table, with the reason.
Exits with 1 if no `plimsoll up` is running."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `status` to the command line."""
    parser = subparsers.add_parser(
        "status",
        help="show the models that `plimsoll up` runs on this machine",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--port", type=values.port, help="show only the `plimsoll up` on this port")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--verbose", action="store_true", help="show each process with pid and log, why models sleep, and the device"
    )
    form.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print the running processes and their models. Return 1 if there are none."""
    from plimsoll_runtime.local.run_folder import RunFolder, all_runs
    from plimsoll_runtime.local.usage import observe

    runs = all_runs() if args.port is None else [RunFolder(args.port)]
    found = [(run, record) for run in runs if (record := run.read()) is not None]
    records = asyncio.run(observe(found))
    if args.json:
        print(json.dumps(records, indent=2))
    elif not records:
        where = "" if args.port is None else f" on port {args.port}"
        print(f"no `plimsoll up` is running{where}; start a model with `plimsoll up MODEL`")
    for number, record in enumerate(() if args.json else records):
        print("\n" * bool(number), end="")
        _show(record, verbose=args.verbose)
    return 0 if records else 1


def _show(record: Mapping[str, Any], *, verbose: bool) -> None:
    from plimsoll_runtime.local.usage import HEAD, notes, rows

    width, began = line_width(), datetime.fromisoformat(record["began"])
    print(f"{record['url']}/v1  up {duration_text(time.time() - began.timestamp())}")
    print(table(HEAD, rows(record), width=width))
    if verbose:
        print("\n" + _details(record, began))
        return
    if below := [cut(note, width) for note in notes(record)]:
        print("\n" + "\n".join(below))


def _details(record: Mapping[str, Any], began: datetime) -> str:
    """Return all processes with their logs, and the findings about the device."""
    from plimsoll_runtime.local.processes.status_board import HOST_SLOT
    from plimsoll_runtime.local.usage import placed_of

    lines = [f"pid {record['pid']}, since {began.astimezone():%Y-%m-%d %H:%M:%S}"]
    host = record.get("host")
    for model in record["models"]:
        lines.append(f"  {model['namespace']}/{model['name']} as {', '.join(model['servedNames'])}")
        if (placed := placed_of(host, model)) is not None:
            lines.append(f"    {placement_line(placed, time.time())}")
        else:
            own = (replica for replica in model["replicas"] if replica["slot"] != HOST_SLOT or host is None)
            lines += [line for replica in own for line in _lines(replica)]
    if host is not None:
        slot = next(r for m in record["models"] for r in m["replicas"] if r["slot"] == HOST_SLOT)
        lines += [*_lines(slot), *(f"    {line}" for line in _host_lines(host))]
    return "\n".join([*lines, *_lines(record["gateway"])])


def _host_lines(host: Mapping[str, Any] | str) -> list[str]:
    """Return the memory and findings from the host's report, or why there is no report."""
    if isinstance(host, str):
        return [f"host: {host}"]
    return [memory_line(host), *findings_lines(host["device"].get("findings", ()))]


def _lines(entry: Mapping[str, Any]) -> list[str]:
    """Return a line for the process, and one for each finding about its device."""
    from plimsoll_runtime.local.usage import SILENT

    restarts = f", restarted {entry['restarts']} times" if entry["restarts"] else ""
    pid = "" if entry["pid"] is None else f" (pid {entry['pid']}{restarts})"
    silent = f", {SILENT}" if entry["phase"] == "ready" and not entry.get("answers", True) else ""
    process = f"    {entry['slot']}: {entry['detail']}{silent}{pid}, log {entry['log']}"
    return [process, *(f"      {line}" for line in findings_lines(entry.get("findings", ())))]
