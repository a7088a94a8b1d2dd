"""`python -m instructions.run`: products in each instruction set that runs here, beside float32 and stock torch.

A weight of 2048 x 8192; processor time of one thread, systems in turns, medians of the rounds' ratios.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import question
from options import Options
from plimsoll_kernels.cpu.library import INSTRUCTION_SETS, kernels
from plimsoll_kernels.cpu.linear import PackedLinear
from tables import NOT_APPLICABLE, Sheet

INPUTS, COLUMNS = 2048, 8192
ROWS = (1, 8, 64)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
REPEATS = 5
"""Turns a round: a call takes milliseconds."""

Product = Callable[[Tensor], Tensor]


def measure(chosen: Options) -> dict[str, Any]:
    """Milliseconds of each system, and its speed over float32 in the same instructions and over stock torch's."""
    torch.set_num_threads(1)
    weight = torch.randn(COLUMNS, INPUTS) * 0.02
    systems = _systems(weight)
    cases = [_case(systems, rows, max(1, round(chosen.rounds * REPEATS * chosen.scale))) for rows in ROWS]
    return {"weight": [COLUMNS, INPUTS], "cases": cases}


def table(result: dict[str, Any]) -> Sheet:
    """A row for each number of rows and instruction set."""
    headings = ["rows", "instructions", "bfloat16 / float32", "bfloat16 / torch float32", "bfloat16 / torch bfloat16"]
    body = [
        [str(case["rows"]), name, *(_times(figures[key]) for key in ("over_float32", "over_torch", "over_torch_bf16"))]
        for case in result["cases"]
        for name, figures in case["bfloat16"].items()
    ]
    return Sheet("Products by instruction set: speed of bfloat16, processor time of one thread", headings, body)


def _systems(weight: Tensor) -> dict[tuple[str, str], Product]:
    """By instruction set ("torch" for stock torch's own choice) and dtype."""
    systems: dict[tuple[str, str], Product] = {}
    for dtype_name, dtype in DTYPES.items():
        typed = weight.to(dtype)
        for name in INSTRUCTION_SETS:
            if (found := kernels(dtype, name)) is not None:
                systems[name, dtype_name] = PackedLinear(found, typed)
        systems["torch", dtype_name] = lambda x, typed=typed: torch.nn.functional.linear(x, typed)  # type: ignore[misc]
    return systems


def _case(systems: dict[tuple[str, str], Product], rows: int, turns: int) -> dict[str, Any]:
    inputs = {name: torch.randn(rows, INPUTS).to(dtype) for name, dtype in DTYPES.items()}
    seconds: dict[tuple[str, str], list[float]] = {system: [] for system in systems}
    order = list(systems)
    for turn in range(turns + 1):
        first = turn % len(order)
        for system in order[first:] + order[:first]:
            start = time.thread_time()
            systems[system](inputs[system[1]])
            if turn:
                seconds[system].append(time.thread_time() - start)
    return {
        "rows": rows,
        "milliseconds": {"/".join(system): 1000 * statistics.median(times) for system, times in seconds.items()},
        "bfloat16": {
            name: _ratios(seconds, name) for name, dtype in systems if dtype == "bfloat16" and name != "torch"
        },
    }


def _ratios(seconds: dict[tuple[str, str], list[float]], name: str) -> dict[str, float | None]:
    others = {
        "over_float32": (name, "float32"),
        "over_torch": ("torch", "float32"),
        "over_torch_bf16": ("torch", "bfloat16"),
    }
    own = seconds[name, "bfloat16"]
    return {
        key: statistics.median(theirs / mine for theirs, mine in zip(seconds[other], own, strict=True))
        if other in seconds
        else None
        for key, other in others.items()
    }


def _times(ratio: float | None) -> str:
    return NOT_APPLICABLE if ratio is None else f"{ratio:.2f}x"


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
