"""A child process that holds one system and runs workloads as they are named on standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from serving.systems import SYSTEMS
from serving.workloads import workloads


def main() -> None:
    """`python -m serving.worker SYSTEM MODEL THREADS SCALE`: one line in, one line of JSON out."""
    name, model, threads, scale = sys.argv[1:]
    answers = sys.stdout
    sys.stdout = sys.stderr
    system = SYSTEMS[name](Path(model), int(threads))
    known = {w.name: w for w in workloads(float(scale))}
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(system.run(known[line.strip()])), file=answers, flush=True)


if __name__ == "__main__":
    main()
