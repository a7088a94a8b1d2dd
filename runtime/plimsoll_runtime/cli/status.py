"""`plimsoll status`: what runs on this machine."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plimsoll_runtime.cli import values
from plimsoll_runtime.local.placementtext import findings_lines, memory_line, placement_line

if TYPE_CHECKING:
    from plimsoll_runtime.local.run_folder import RunFolder


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
    from plimsoll_runtime.local.run_folder import RunFolder, all_runs

    runs = all_runs() if args.port is None else [RunFolder(args.port)]
    records = [{**record, **_host(run)} for run in runs if (record := run.read()) is not None]
    if args.json:
        print(json.dumps(records, indent=2))
    elif not records:
        where = "" if args.port is None else f" on port {args.port}"
        print(f"nothing runs{where}; start something with `plimsoll up FILE`")
    else:
        print("\n\n".join(map(_describe, records)))
    return 0 if records else 1


def _host(run: RunFolder) -> dict[str, Any]:
    """What the process that models share says of itself, where there is one."""
    report = run.host_access.report()
    return {} if report is None else {"host": report}


def _describe(record: Mapping[str, Any]) -> str:
    from plimsoll_runtime.local.table import HOST_SLOT

    lines = [f"{record['url']}/v1 (pid {record['pid']}, since {record['began']})"]
    host = record.get("host")
    known = {(m["namespace"], m["name"]): m for m in host["models"]} if isinstance(host, dict) else {}
    for model in record["models"]:
        lines.append(f"  {model['namespace']}/{model['name']} as {', '.join(model['servedNames'])}")
        if (placed := known.get((model["namespace"], model["name"]))) is not None:
            lines.append(f"    {placement_line(placed, time.time())}")
        else:
            own = (replica for replica in model["replicas"] if replica["slot"] != HOST_SLOT or host is None)
            lines += [line for replica in own for line in _lines(replica)]
    if host is not None:
        slot = next(r for m in record["models"] for r in m["replicas"] if r["slot"] == HOST_SLOT)
        lines += [*_lines(slot), *(f"    {line}" for line in _host_lines(host))]
    return "\n".join([*lines, *_lines(record["gateway"])])


def _host_lines(host: Mapping[str, Any] | str) -> list[str]:
    """Of its report, or why there is none."""
    if isinstance(host, str):
        return [f"host: {host}"]
    return [memory_line(host), *findings_lines(host["device"].get("findings", ()))]


def _lines(entry: Mapping[str, Any]) -> list[str]:
    """A process, and below it what there is to say of its device."""
    restarts = f", restarted {entry['restarts']} times" if entry["restarts"] else ""
    pid = "" if entry["pid"] is None else f" (pid {entry['pid']}{restarts})"
    process = f"    {entry['slot']}: {entry['detail']}{pid}, log {entry['log']}"
    return [process, *(f"      {line}" for line in findings_lines(entry.get("findings", ())))]
