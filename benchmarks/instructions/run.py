"""`python -m instructions.run`: matrix products in each available instruction set, compared with float32 and stock
torch.

A weight of 2048 x 8192; CPU time of one thread, alternating systems, medians of the rounds' ratios. bfloat16 is also
compared with oneDNN's product with a weight in its own layout, and with the limit of memory: reading the weight once.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

import question
from options import Options
from plimsoll_kernels.cpu.library import INSTRUCTION_SETS, kernels, speed
from plimsoll_kernels.cpu.linear import PackedLinear
from serving.roofline import onednn_packs_bfloat16, onednn_product
from tables import NOT_APPLICABLE, Sheet

INPUTS, COLUMNS = 2048, 8192
ROWS = (1, 8, 16, 64, 512)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
REPEATS = 5
"""Repetitions per round, because a call takes only milliseconds."""

READ_BYTES = 2**30
OTHERS = {
    "float32": "float32",
    "torch": "torch float32",
    "torch_bf16": "torch bfloat16",
    "onednn": "oneDNN packed",
    "memory": "reading the weight",
}

Product = Callable[[Tensor], Tensor]


def measure(chosen: Options) -> dict[str, Any]:
    """Return the CPU milliseconds of each system, and for each instruction set the speed of its bfloat16 product over
    its float32 product and over each other system.
    """
    torch.set_num_threads(1)
    weight = torch.randn(COLUMNS, INPUTS) * 0.02
    systems = _systems(weight)
    cases = [_case(systems, rows, max(1, round(chosen.rounds * REPEATS * chosen.scale))) for rows in ROWS]
    used, told = kernels(torch.bfloat16), speed(torch.bfloat16)
    return {
        "weight": [COLUMNS, INPUTS],
        "cases": cases,
        "used": None if used is None else used.name.decode(),
        "speed": None if told is None else asdict(told),
    }


def table(result: dict[str, Any]) -> Sheet:
    """Return a row for each number of rows and instruction set."""
    headings = ["rows", "instructions", *(f"bfloat16 / {other}" for other in OTHERS.values())]
    body = [
        [str(case["rows"]), name, *(_times(figures.get(f"over_{key}")) for key in OTHERS)]
        for case in result["cases"]
        for name, figures in case["bfloat16"].items()
    ]
    return Sheet("Products by instruction set: speed of bfloat16, processor time of one thread", headings, body)


def _systems(weight: Tensor) -> dict[tuple[str, str], Product]:
    """Return the products by instruction set and dtype. Further names: "torch" (stock torch's own choice), "onednn"
    (weight in its own layout) and "memory" (only reads the weight).
    """
    systems: dict[tuple[str, str], Product] = {}
    for dtype_name, dtype in DTYPES.items():
        typed = weight.to(dtype)
        for name in INSTRUCTION_SETS:
            if (found := kernels(dtype, name)) is not None:
                systems[name, dtype_name] = PackedLinear(found, typed)
        systems["torch", dtype_name] = lambda x, typed=typed: torch.nn.functional.linear(x, typed)  # type: ignore[misc]
    if onednn_packs_bfloat16():
        systems["onednn", "bfloat16"] = onednn_product(weight.bfloat16(), 64)
    systems["memory", "bfloat16"] = _reading(weight.numel() * torch.bfloat16.itemsize)
    return systems


def _reading(nbytes: int) -> Product:
    """Return a function that reads `nbytes` bytes, each time from another part of a region larger than any cache."""
    parts = itertools.cycle(torch.ones(READ_BYTES // nbytes, nbytes // 4).unbind())
    return lambda _: next(parts).sum()


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
        "bfloat16": {name: _ratios(seconds, name) for name in INSTRUCTION_SETS if (name, "bfloat16") in systems},
    }


def _ratios(seconds: dict[tuple[str, str], list[float]], name: str) -> dict[str, float | None]:
    others = {
        "over_float32": (name, "float32"),
        "over_torch": ("torch", "float32"),
        "over_torch_bf16": ("torch", "bfloat16"),
        "over_onednn": ("onednn", "bfloat16"),
        "over_memory": ("memory", "bfloat16"),
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
