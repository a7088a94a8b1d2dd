"""`make check-gpu`: runs all checks of a device in parts, and resumes after an interrupted call.

Exits with 0 if all requested parts are done, 1 if one is not, 2 if nothing was checked.
"""

from __future__ import annotations

import os
import sys

from gpu.harness import call, wheels
from gpu.harness.check_parts import PARTS
from gpu.harness.part import Part

MOST_PROCESSES = 8
"""Each process has its own context on the device, and compiles kernels on its own cores."""


def main(parts: tuple[Part, ...] = PARTS) -> int:
    """Run the checks and return the exit status."""
    parser = call.options(__doc__)
    parser.add_argument("--no-gpu-is-fine", action="store_true", help="exit with 0 if there is no device")
    parser.add_argument("--processes", type=int, metavar="N", help="that share the tests of a part (0: one)")
    args = parser.parse_args()
    wanted = call.chosen(parser, args, parts)
    try:
        if args.list:
            print(call.listing(wanted, call.ledger_of("check", args)))
            return 0
        device = call.device_name()
        if not device:
            print("nothing was checked: torch sees no CUDA or ROCm device here")
            return 0 if args.no_gpu_is_fine else call.NO_GPU
        session = call.begin("check", args, device, processes=_processes(args.processes))
        found = session.perform(wanted)
    except (RuntimeError, ValueError) as error:
        print(f"nothing was checked: {error}")
        return call.NO_GPU
    print(call.listing(wanted, found))
    return call.code_of(wanted, found)


def _processes(asked: int | None) -> int:
    """Return the number of pytest-xdist processes: the requested one, or one per core but at most MOST_PROCESSES. 0 if
    pytest-xdist is not installed.
    """
    if wheels.installed("pytest-xdist") is None:
        return 0
    return min(MOST_PROCESSES, len(os.sched_getaffinity(0))) if asked is None else asked


if __name__ == "__main__":
    sys.exit(main())
