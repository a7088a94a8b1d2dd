"""`make check-gpu`: everything that must hold on a device, in parts that go on where the last call ended.

Ends with 0 where all parts that were asked for are done, with 1 where one is not, and with 2 where nothing was checked.
"""

from __future__ import annotations

import os
import sys

from gpu.harness import call, wheels
from gpu.harness.check_parts import PARTS
from gpu.harness.part import Part

MOST_PROCESSES = 8
"""Each has a context of its own on the device, and compiles kernels on cores of its own."""


def main(parts: tuple[Part, ...] = PARTS) -> int:
    """See above."""
    parser = call.options(__doc__)
    parser.add_argument("--no-gpu-is-fine", action="store_true", help="end with 0 where there is no device")
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
    """As asked for, or by the cores; one where pytest cannot divide its work."""
    if wheels.installed("pytest-xdist") is None:
        return 0
    return min(MOST_PROCESSES, len(os.sched_getaffinity(0))) if asked is None else asked


if __name__ == "__main__":
    sys.exit(main())
