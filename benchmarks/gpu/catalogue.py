"""`python -m gpu.catalogue`: every attention backend on this device: its correctness, its time, or why it cannot run.

Exits with 1 if a backend that should run fails, or differs from the reference.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.attention.benchmark import Mix, Stopwatch, check, expected_mix, measure, small_steps
from plimsoll_runtime.execution.attention.capabilities import Target
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.models.spec.attention import AttentionShape

SHAPES: Mapping[str, AttentionShape] = {
    "Llama 3 8B": AttentionShape(heads=32, kv_heads=8, head_dim=128, scale=128**-0.5),
    "Qwen 2.5 0.5B": AttentionShape(heads=14, kv_heads=2, head_dim=64, scale=64**-0.5),
    "Gemma 2 9B, window, soft cap": AttentionShape(
        heads=16, kv_heads=8, head_dim=256, scale=256**-0.5, window=4096, softcap=50.0
    ),
    "gpt-oss 20B, window, sinks": AttentionShape(
        heads=64, kv_heads=8, head_dim=64, scale=64**-0.5, window=128, sinks=True
    ),
    "DeepSeek V3, latent": AttentionShape(heads=128, kv_heads=1, head_dim=576, scale=192**-0.5, latent=True),
}
BLOCK_SIZES = (16, 256)
"""Tokens per block: the default, and the only size that FlashAttention 2 supports."""
SECONDS = 30.0
"""Time limit of each backend, including compilation."""


@dataclass(frozen=True, slots=True)
class Row:
    """A backend on one shape: milliseconds per layer, or why there are none. `failed`: it should run, but does not."""

    shape: str
    block_size: int
    backend: str
    decode_ms: float | None = None
    chunk_ms: float | None = None
    reason: str = ""
    failed: bool = False


def main() -> int:
    """Run the catalogue and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    rows: list[Row] = []
    device = torch.device("cuda")
    for block_size in BLOCK_SIZES:
        for name, shape in SHAPES.items():
            target = Target(device, torch.bfloat16, [shape], block_size)
            rows += table(name, target, expected_mix(device))
            if args.json:
                args.json.write_text(json.dumps([asdict(r) for r in rows], indent=2) + "\n", encoding="utf-8")
    failed = [f"{row.backend} ({row.shape})" for row in rows if row.failed]
    print(f"failed: {', '.join(failed)}" if failed else "none failed")
    return 1 if failed else 0


@torch.inference_mode()
def table(
    name: str, target: Target, mix: Mix, backends: Iterable[type[AttentionBackend]] = BACKENDS.values()
) -> list[Row]:
    """Measure each backend on one shape. Print its row immediately, and return all rows."""
    print(f"{name}, blocks of {target.block_size}: {mix}", flush=True)
    expected = small_steps(ReferenceBackend, target)
    rows = []
    for backend in backends:
        rows.append(_row(name, backend, target, mix, expected))
        row = rows[-1]
        timed = f"{row.decode_ms:>10.3f}{row.chunk_ms:>11.3f}" if row.decode_ms is not None else f"  {row.reason}"
        print(f"  {row.backend:<12}{timed}", flush=True)
    return rows


def _row(shape: str, backend: type[AttentionBackend], target: Target, mix: Mix, expected: Sequence[Tensor]) -> Row:
    row = partial(Row, shape, target.block_size, backend.name)
    if reason := backend.capabilities.refusal(target):
        return row(reason=reason)
    if backend.capabilities.last_resort:
        return row(reason="is the reference of the comparison")
    try:
        check(backend, target, expected)
        watch = Stopwatch(time.perf_counter, time.perf_counter() + SECONDS, patient=True)
        timing = measure(backend, target, mix, watch)
    except Exception as error:  # noqa: BLE001 - the table shows every failure
        return row(reason=f"failed: {type(error).__name__}: {error}", failed=True)
    return row(round(timing.decode_ms, 4), round(timing.chunk_ms, 4))


if __name__ == "__main__":
    sys.exit(main())
