"""`python -m serving.run`: W1 to W4, the demo model and a mixture, with alternating systems in one run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

import options
import tables
from options import Options
from serving import roofline
from serving.pool import Pool
from serving.rounds import measure
from serving.systems import LLAMA_CPP, OPENVINO, TRANSFORMERS, US, US_HTTP
from serving.workloads import workloads

LINES = {
    "W1": (US, OPENVINO, LLAMA_CPP, TRANSFORMERS),
    "W2": (US, OPENVINO, LLAMA_CPP, TRANSFORMERS),
    "W3": (US, OPENVINO, LLAMA_CPP, TRANSFORMERS),
    "W3p": (US, OPENVINO, LLAMA_CPP),
    "W4": (US_HTTP, OPENVINO, LLAMA_CPP),
    "D1": (US_HTTP, LLAMA_CPP),
    "D16": (US_HTTP, LLAMA_CPP),
    "W6": (US, LLAMA_CPP),
}
"""Systems of each workload. OpenVINO GenAI has no server: in W4 its users are loops in its own process."""


GPU_LINES = {
    "W1": (US, TRANSFORMERS),
    "W2": (US, TRANSFORMERS),
    "W3": (US, TRANSFORMERS),
    "W4": (US_HTTP, TRANSFORMERS),
}
"""On a GPU: the other peers were built for the CPU. In W4 Transformers gets all requests at once, without users."""


def main() -> int:
    """Measure, print and write."""
    parser = options.parser(__doc__)
    parser.add_argument("--gpu", action="store_true", help="refuse to measure without one")
    args = parser.parse_args()
    lines = GPU_LINES if args.gpu else LINES
    if unknown := sorted(set(args.only) - set(lines)):
        parser.error(f"no workload {', '.join(unknown)}; there is {', '.join(lines)}")
    if args.gpu and roofline.device().type != "cuda":
        print("bench: --gpu, and torch sees no GPU here", file=sys.stderr)
        return 2
    chosen, console = options.from_arguments(args), tables.console()
    rows = run(lines, chosen, console)
    console.print(tables.serving(rows).rich())
    options.write(chosen, {"workloads": rows})
    return 0


def run(lines: Mapping[str, Sequence[str]], chosen: Options, console: Console) -> list[dict[str, Any]]:
    """Run the chosen workloads, and return their rows. Those of one shape run together, so that only the systems of one
    shape are in memory.
    """
    names = [n for n in lines if not chosen.only or n in chosen.only]
    shapes = {w.name: w.shape for w in workloads(chosen.scale)}
    rows = []
    for shape in dict.fromkeys(shapes[n] for n in names):
        with Pool(chosen.threads) as pool:
            mine = [n for n in names if shapes[n] is shape]
            rows += [measure(n, lines[n], pool, chosen, console.print) for n in mine]
    return rows


if __name__ == "__main__":
    sys.exit(main())
