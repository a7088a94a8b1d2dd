"""`python benchmarks/report.py`: writes the newest results into the marked section of docs/reference/performance.md.

With --check nothing is written, and the exit status is 1 if the document differs from the results.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import tables
from tables import Sheet

HERE = Path(__file__).resolve().parent
RESULTS, DOCUMENT = HERE / "results", HERE.parent / "docs" / "reference" / "performance.md"
BEGIN, END = "<!-- results: written by benchmarks/report.py -->", "<!-- end of results -->"
NOTHING = "Nothing was measured in full yet: `make bench BENCH_ARGS=--record`."


class ReportError(RuntimeError):
    """The document cannot be written; the message says what to do."""


def main() -> int:
    """Write or check the document. Return 0, with --check 1 if the document differs; 2 if it cannot be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the document is out of date")
    args = parser.parse_args()
    try:
        before = DOCUMENT.read_text()
        after = place(before, section(read_runs(RESULTS)))
    except ReportError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    if args.check:
        return 0 if after == before else 1
    DOCUMENT.write_text(after)
    return 0


def read_runs(folder: Path) -> list[Mapping[str, Any]]:
    """Return the results of complete runs in a folder, in order of file names. Results of single benchmarks are left
    out: they do not belong to the document.
    """
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [run for run in runs if {"workloads", "goals"} <= run.keys()]


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the text between the marks. Raises ReportError for a run at reduced scale, and for two runs of one kind of
    processor.
    """
    return "\n\n".join([*_of_all(runs), *(_run(run) for run in runs)]) or NOTHING


def _of_all(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the goals on each kind of processor, side by side. Raises ReportError for two runs of one kind."""
    if not runs:
        return []
    kinds = [_kind(run) for run in runs]
    if twice := sorted({kind for kind in kinds if kinds.count(kind) > 1}):
        raise ReportError(f"two runs are of {', '.join(twice)}: keep one file of each kind of processor")
    return [
        "### On each kind of processor",
        tables.goals_by_kind({_kind(run): run["goals"] for run in runs}).markdown(),
    ]


def _kind(run: Mapping[str, Any]) -> str:
    return str(run["run"]["gpu"] or run["run"]["kind"])


def place(document: str, text: str) -> str:
    """Return the document with `text` between its marks. Raises ReportError unless it has each mark once."""
    if document.count(BEGIN) != 1 or document.count(END) != 1 or document.index(BEGIN) > document.index(END):
        raise ReportError(f"{DOCUMENT.name} needs the lines {BEGIN} and {END}, once each and in this order")
    head, rest = document.split(BEGIN)
    return f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}"


def _run(run: Mapping[str, Any]) -> str:
    """Return the section of one run: machine, versions, tables. Raises ReportError for a run at reduced scale."""
    where = run["run"]
    if where["scale"] != 1:
        raise ReportError(
            f"a run at scale {where['scale']} is a quick look; only results at scale 1 count: remove its file, or "
            "measure at scale 1"
        )
    versions = {"Python": where["python"], **where["versions"], **where["peers"]}
    title = f"### {_kind(run)}: {where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB, {where['date']}"
    setting = f"`{where['command']}`; {where['rounds']} rounds, {where['threads']} threads; "
    setting += ", ".join(f"{name} {version}" for name, version in versions.items() if version) + "."
    return "\n\n".join([title, setting, *(sheet.markdown() for sheet in _sheets(run))])


def _sheets(run: Mapping[str, Any]) -> list[Sheet]:
    sheets = [tables.serving(run["workloads"]), tables.limits(run["workloads"])] if run["workloads"] else []
    return sheets + [_table(name, result) for name, result in run["questions"].items()]


def _table(question: str, result: Mapping[str, Any]) -> Sheet:
    """Return the table as the benchmark prints it."""
    sheet: Sheet = import_module(f"{question}.run").table(result)
    return sheet


if __name__ == "__main__":
    sys.exit(main())
