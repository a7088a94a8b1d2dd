"""`python -m gpu.run`: kernels, steps and the engine compared with a GPU's limits; then serving, compared with
Transformers.

`--only` takes names of benchmarks (all: `make bench-gpu LIST=1`), and the workloads of `serving.run --gpu`. `make
bench-gpu` runs them one by one as separate processes, and judges the goals. Without a GPU it is skipped. The 8B model's
weights are generated on the device when first needed: 16 GB of disk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

import options
import tables
from gpu import attention, candidates, choosing, experts, idle, load, mixed, sleeping, start, steps, users
from gpu.clock import Limits, limits
from gpu.model import LLAMA_8B, folder, program_for, random_decoder
from gpu.sheet import table
from options import Options
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.execution.graphs.capture import CudaCapture
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.spec.attention import AttentionShape
from serving import models
from serving.run import GPU_LINES
from serving.run import run as run_serving

DTYPE = torch.bfloat16
PROMPT, CHUNK = 8192, 2048


def main() -> int:
    """Return 0 if everything requested was measured, or there is no GPU."""
    parser = options.parser(__doc__)
    chosen = options.from_arguments(parser.parse_args())
    known = (*QUESTIONS, *GPU_LINES)
    if unknown := sorted(set(chosen.only) - set(known)):
        parser.error(f"unknown benchmark or workload {', '.join(unknown)}; known: {', '.join(known)}")
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return 0
    console = tables.console()
    result: dict[str, Any] = {}
    if questions := [name for name in QUESTIONS if name in chosen.only or not chosen.only]:
        result = measure(questions, Bench(torch.device("cuda"), chosen))
        console.print(table(result).rich())
    rows: list[dict[str, Any]] = []
    if workloads := [name for name in GPU_LINES if name in chosen.only or not chosen.only]:
        rows = run_serving({name: GPU_LINES[name] for name in workloads}, chosen, console)
        console.print(tables.serving(rows).rich())
    options.write(chosen, {"gpu": result, "workloads": rows})
    return 0


@dataclass(slots=False)
class Bench:
    """State shared by benchmarks, created when first needed."""

    device: torch.device
    chosen: Options

    @property
    def rounds(self) -> int:
        """Number of rounds for a median."""
        return self.chosen.rounds

    @cached_property
    def known(self) -> Limits:
        """The measured limits of the device."""
        return limits(self.device, self.chosen.rounds, self.chosen.scale)

    @cached_property
    def decoder(self) -> TorchDecoder:
        """A decoder of 8 billion random parameters."""
        return random_decoder(program_for(LLAMA_8B), DTYPE, self.device)

    @property
    def capture(self) -> CudaCapture:
        """A new graph capture, with memory of its own."""
        return CudaCapture(self.device)

    @property
    def model(self) -> str:
        """The folder of a model with the same shape as `decoder`."""
        return str(folder(LLAMA_8B, self.device))


Question = Callable[[Bench], Any]


def measure(questions: list[str], bench: Bench) -> dict[str, Any]:
    """Measure the device's limits, and every benchmark's figures relative to them."""
    known = bench.known
    result: dict[str, Any] = {
        "limits": {"copy_gb_s": round(known.bandwidth / 1e9, 1), "product_tflop_s": round(known.rate / 1e12, 1)}
    }
    for name in questions:
        result[name] = QUESTIONS[name](bench)
    return result


def _attention(shape: AttentionShape, cases: tuple[attention.Case, ...]) -> Question:
    def asked(bench: Bench) -> Any:
        cache, capture = attention.cache_for(cases, shape, DTYPE, bench.device), bench.capture
        return [attention.measure(case, shape, bench.known, cache, capture, bench.rounds) for case in cases]

    return asked


def _candidates(bench: Bench) -> Any:
    shape = program_for(LLAMA_8B).facts.attention[0]
    works = [(case, size, [*BACKENDS.values()]) for size in candidates.BLOCK_SIZES for case in candidates.PROMPTS]
    works.append((candidates.MIXED, candidates.BLOCK_SIZES[0], candidates.halves()))
    return [
        row
        for case, size, backends in works
        for row in candidates.measure(case, shape, size, bench.known, bench.rounds, DTYPE, bench.device, backends)
    ]


def _experts(bench: Bench) -> Any:
    capture = bench.capture
    return [
        experts.measure(case, experts.QWEN3_30B, bench.known, capture, bench.rounds, DTYPE, bench.device)
        for case in experts.CASES
    ]


def _sampling(bench: Bench) -> Any:
    capture = bench.capture
    return [
        choosing.measure(wish, rows, choosing.VOCABULARY, bench.known, capture, bench.rounds, bench.device)
        for rows in choosing.BATCHES
        for wish in choosing.WISHES
    ]


def _decode(bench: Bench) -> Any:
    work = steps.Decodes(1, 1024)
    return steps.decode(bench.decoder, bench.capture, bench.known, work, bench.rounds, bench.device)


def _batches(bench: Bench) -> Any:
    return [
        steps.decode(bench.decoder, bench.capture, bench.known, work, bench.rounds, bench.device)
        for work in steps.BATCHES
    ]


def _prefill(chunk: int) -> Question:
    return lambda bench: steps.prefill(bench.decoder, bench.known, PROMPT, chunk, bench.rounds, bench.device)


QUESTIONS: Mapping[str, Question] = {
    "attention": _attention(program_for(LLAMA_8B).facts.attention[0], attention.CASES),
    "candidates": _candidates,
    "latent": _attention(attention.DEEPSEEK_V3, attention.LATENT_CASES),
    "experts": _experts,
    "sampling": _sampling,
    "decode": _decode,
    "batches": _batches,
    "prefill": _prefill(PROMPT),
    "chunks": _prefill(CHUNK),
    "idle": lambda bench: idle.measure(bench.model, idle.IDLE),
    "host": lambda bench: [idle.measure(bench.model, work) for work in idle.HOST],
    "mixed": lambda bench: mixed.measure(bench.model, LLAMA_8B, bench.known, bench.rounds, bench.device),
    "users": lambda bench: users.measure(bench.model, LLAMA_8B, bench.known),
    "sleep": lambda bench: sleeping.measure(bench.model, bench.rounds, bench.device),
    "start": lambda bench: start.measure(models.source(models.MEDIUM), bench.rounds, "--dtype", "bfloat16"),
    "memory": lambda bench: load.measure(bench.model, load.Load()),
}
"""Benchmarks by name, in order. Each is a part of `make bench-gpu`."""


if __name__ == "__main__":
    sys.exit(main())
