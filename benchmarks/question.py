"""Common main function of benchmarks (measure, print a table, write the result), and running them as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import options
import tables
from options import Options
from tables import Sheet

Result = dict[str, Any]
HERE = Path(__file__).resolve().parent


class QuestionFailed(RuntimeError):
    """A benchmark's process failed, after printing its output; the message has its exit status."""


def main(doc: str | None, measure: Callable[[Options], Result], table: Callable[[Result], Sheet]) -> int:
    """Run a benchmark: measure, print the table, write the result if `--json` asks for it. Return 0. `doc`: the text of
    `--help`.
    """
    chosen = options.from_arguments(options.parser(doc).parse_args())
    result = measure(chosen)
    tables.console().print(table(result).rich())
    options.write(chosen, result)
    return 0


def ask(name: str, only: Sequence[str], chosen: Options, environment: Mapping[str, str] | None = None) -> Result:
    """Run one benchmark as a separate process and return its result without its provenance, which the caller records
    once. `environment`: variables that select another tree's sources. Raises QuestionFailed.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-P", "-W", "ignore", "-m", f"{name}.run", "--json", str(answer)]
        command += ["--rounds", str(chosen.rounds), "--threads", str(chosen.threads), "--scale", str(chosen.scale)]
        command += [part for workload in only for part in ("--only", workload)]
        environment = os.environ | {"PYTHONPATH": str(HERE)} if environment is None else environment
        status = subprocess.run(command, env=environment, check=False).returncode
        if status or not answer.is_file():
            raise QuestionFailed(f"{name} ended with {status}")
        result: Result = json.loads(answer.read_text())
        del result["run"]
        return result
