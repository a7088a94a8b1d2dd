"""`make bench-gpu`: kernels, steps and the engine beside a GPU's limits; then serving, beside Transformers.

`--only` takes attention, latent, experts, decode, prefill, idle and the workloads of `serving.run --gpu`. Without a GPU
it is skipped.
The engine's model is made on disk when idle is first asked for: 16 GB, some minutes.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

import goals
import options
import tables
from gpu import attention, experts, idle, steps
from gpu.clock import limits
from gpu.model import LLAMA_8B, program_for, random_decoder
from options import Options
from plimsoll_runtime.execution.capture import CudaCapture
from serving import models
from serving.run import GPU_LINES
from serving.run import run as run_serving
from tables import Sheet

QUESTIONS = ("attention", "latent", "experts", "decode", "prefill", "idle")
DTYPE = torch.bfloat16
DECODE_CONTEXT, PREFILL_TOKENS, IDLE_SEQUENCES = 1024, 8192, 32


def main() -> int:
    """0 when no goal is missed, or there is no GPU; else 1."""
    parser = options.parser(__doc__)
    chosen = options.from_arguments(parser.parse_args())
    known = (*QUESTIONS, *GPU_LINES)
    if unknown := sorted(set(chosen.only) - set(known)):
        parser.error(f"nothing is called {', '.join(unknown)}; there is {', '.join(known)}")
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return 0
    console = tables.console()
    result = measure([q for q in QUESTIONS if q in chosen.only or not chosen.only], torch.device("cuda"), chosen)
    console.print(table(result).rich())
    rows: list[dict[str, Any]] = []
    if workloads := [n for n in GPU_LINES if n in chosen.only or not chosen.only]:
        rows = run_serving({n: GPU_LINES[n] for n in workloads}, chosen, console)
        console.print(tables.serving(rows).rich())
    verdicts = goals.judge(goals.Results(rows, {"gpu": result}), goals.GPU_GOALS)
    records = [goals.record(v) for v in verdicts]
    console.print(tables.goals(records).rich())
    options.write(chosen, {"gpu": result, "workloads": rows, "goals": records})
    return 1 if any(v.status is goals.Status.MISSED for v in verdicts) else 0


def measure(questions: list[str], device: torch.device, chosen: Options) -> dict[str, Any]:
    """The device's limits, and every question's figures beside them."""
    found = limits(device, chosen.rounds, chosen.scale)
    result: dict[str, Any] = {
        "limits": {"copy_gb_s": round(found.bandwidth / 1e9, 1), "product_tflop_s": round(found.rate / 1e12, 1)}
    }
    program = program_for(LLAMA_8B)
    kinds = {
        "attention": (program.facts.attention[0], attention.CASES),
        "latent": (attention.DEEPSEEK_V3, attention.LATENT_CASES),
    }
    for name in [question for question in questions if question in kinds]:
        shape, cases = kinds[name]
        cache = attention.cache_for(cases, shape, DTYPE, device)
        capture = CudaCapture(device)
        result[name] = [attention.measure(case, shape, found, cache, capture, chosen.rounds) for case in cases]
        del cache
    if "experts" in questions:
        capture = CudaCapture(device)
        result["experts"] = [
            experts.measure(case, experts.QWEN3_30B, found, capture, chosen.rounds, DTYPE, device)
            for case in experts.CASES
        ]
    if "decode" in questions or "prefill" in questions:
        decoder = random_decoder(program, DTYPE, device)
        if "decode" in questions:
            capture = CudaCapture(device)
            result["decode"] = steps.decode(decoder, capture, found, DECODE_CONTEXT, chosen.rounds, device)
        if "prefill" in questions:
            result["prefill"] = steps.prefill(decoder, found, PREFILL_TOKENS, chosen.rounds, device)
        del decoder
    if "idle" in questions:
        result["idle"] = idle.measure(models.source(LLAMA_8B), IDLE_SEQUENCES)
    return result


def table(result: dict[str, Any]) -> Sheet:
    """One row a figure."""
    rows = [
        [f"attention: {r['name']}", f"{r['microseconds']:.1f} us", f"{r['of_bandwidth']:.1%}", f"{r['of_rate']:.1%}"]
        for r in result.get("attention", [])
    ]
    rows += [
        [r["name"], f"{r['microseconds']:.1f} us", f"{r['of_bandwidth']:.1%}", f"{r['of_rate']:.1%}"]
        for r in (*result.get("latent", []), *result.get("experts", []))
    ]
    if found := result.get("decode"):
        name = f"decode 1 after {found['context']}: {found['tokens_per_second']:.0f} tokens/s"
        rows.append([name, f"{found['milliseconds']:.3f} ms", f"{found['of_bandwidth']:.1%}", tables.NOT_APPLICABLE])
    if found := result.get("prefill"):
        name = f"prefill of {found['tokens']}"
        rows.append([name, f"{found['milliseconds']:.1f} ms", tables.NOT_APPLICABLE, f"{found['of_rate']:.1%}"])
    if found := result.get("idle"):
        rows.append([f"idle in {found['steps']} steps of {found['sequences']}", f"{found['idle']:.1%}", "-", "-"])
    measured = result["limits"]
    title = f"Beside a copy's {measured['copy_gb_s']} GB/s and a product's {measured['product_tflop_s']} TFLOP/s"
    return Sheet(title, ["work", "time", "of the copy", "of the product"], rows)


if __name__ == "__main__":
    sys.exit(main())
