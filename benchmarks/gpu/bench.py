"""`make bench-gpu`: runs every benchmark of `gpu.run` as a separate part, then judges the goals. Resumes an interrupted
run.

Results are gpu-NAME.json, one file per part, and gpu-bench.json with the status of all parts and goals. Exits with 0 if
all requested parts are measured and none of their goals is missed, or if there is no GPU.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from gpu.harness import call
from gpu.harness.bench_parts import parts
from gpu.harness.ledger import Ledger


def main() -> int:
    """Run the benchmarks and return the exit status."""
    parser = call.options(__doc__)
    parser.add_argument("--rounds", metavar="N", help="rounds of each benchmark (default 5)")
    parser.add_argument("--scale", metavar="SHARE", help="less work for a quick look, never a result")
    args = parser.parse_args()
    given = [("--rounds", args.rounds), ("--scale", args.scale)]
    known = parts(*(text for name, value in given if value for text in (name, value)))
    wanted = call.chosen(parser, args, known)
    try:
        if args.list:
            print(call.listing(wanted, call.ledger_of("bench", args)))
            return 0
        device = call.device_name()
        if not device:
            print("skipped: no GPU")
            return 0
        session = call.begin("bench", args, device)
        found = session.perform(wanted)
    except (RuntimeError, ValueError) as error:
        print(f"nothing was measured: {error}")
        return call.NO_GPU
    for part in wanted:
        if part.name in found.parts and (result := found.parts[part.name].result) is not None:
            path = session.out / f"gpu-{part.name}.json"
            path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    records = judged(found)
    found.run = {**found.run, "goals": records}
    found.write(session.kept, session.shared)
    for each in records:
        print(f"{each['status']:<13} {each['work']}: {each['goal']}: {each['figure']}")
    print(call.listing(wanted, found))
    missed = any(each["status"] == "missed" for each in records)
    return 1 if missed else call.code_of(wanted, found)


def judged(ledger: Ledger) -> list[dict[str, Any]]:
    """Judge every GPU goal by the measurements so far."""
    # Its imports may be missing before wheels are installed.
    import goals

    figures: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for record in ledger.parts.values():
        if record.result is not None:
            figures |= record.result["gpu"]
            rows += record.result["workloads"]
    verdicts = goals.judge(goals.Results(rows, {"gpu": figures}), goals.GPU_GOALS)
    return [goals.record(verdict) for verdict in verdicts]


if __name__ == "__main__":
    sys.exit(main())
