"""Requests of mixed lengths, all at once and offline, compared with Transformers' continuous batching and the
roofline.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from gpu.clock import Limits
from plimsoll_runtime import LLM, SamplingParams
from serving.latency import expect
from serving.models import Shape
from serving.roofline import Machine, floor_seconds
from serving.workloads import Request, Workload

COUNT, LONGEST = 256, 2048
INPUTS, OUTPUTS = (64, 1024), (64, 512)
MOST_ROUNDS = 3
"""Maximum number of rounds: each takes about ten seconds, and the peer's several times that."""


def requests(count: int, shape: Shape, seed: int) -> tuple[Request, ...]:
    """Return requests whose lengths are the same for each seed, and whose tokens differ."""
    lengths, tokens = random.Random(0), random.Random(seed)
    sizes = [(lengths.randint(*INPUTS), lengths.randint(*OUTPUTS)) for _ in range(count)]
    return tuple(Request(tuple(tokens.randrange(3, shape.vocab) for _ in range(i)), o) for i, o in sizes)


def measure(
    model: str, shape: Shape, known: Limits, rounds: int, device: torch.device, count: int = COUNT, **options: Any
) -> dict[str, Any]:
    """Run both systems in this process: the median of our rounds, one round of theirs. `ratio`: their seconds over
    ours. If theirs fails, `absent` says why, and there is no ratio.
    """
    asked = [requests(count, shape, seed) for seed in range(min(rounds, MOST_ROUNDS))]
    ours = statistics.median(of_ours(model, asked, **options))
    floor = floor_seconds(Workload("", "", asked[0], shape=shape), Machine(known.bandwidth, known.rate))
    tokens = sum(request.output_len for request in asked[0])
    found = {
        "requests": count,
        "seconds": round(ours, 3),
        "tokens_per_second": round(tokens / ours, 1),
        "of_roofline": round(floor / ours, 4),
    }
    _forget(device)
    try:
        theirs = of_transformers(model, asked[0], device)
    except Exception as error:  # noqa: BLE001 - a failing peer is left out, with the reason
        return {**found, "absent": f"Transformers failed: {type(error).__name__}: {error}"}
    return {**found, "absent": "", "transformers_seconds": round(theirs, 3), "ratio": round(theirs / ours, 3)}


def of_ours(model: str, asked: Sequence[Sequence[Request]], **options: Any) -> list[float]:
    """Return seconds of each round of `LLM.generate`, after an uncounted one."""
    defaults: dict[str, Any] = {"dtype": "bfloat16", "max_model_len": LONGEST, "max_sequences": COUNT}
    times = []
    with LLM(model, **{**defaults, **options}) as llm:
        for number, batch in enumerate([asked[0][:8], *asked]):
            llm.reset_prefix_cache()
            params = [SamplingParams(temperature=0.0, max_tokens=r.output_len, ignore_eos=True) for r in batch]
            began = time.perf_counter()
            results = llm.generate([list(r.prompt) for r in batch], params)
            if number:
                times.append(time.perf_counter() - began)
            expect(sum(len(r.outputs[0].token_ids) for r in results), sum(r.output_len for r in batch))
    return times


def of_transformers(model: str, batch: Sequence[Request], device: torch.device) -> float:
    """Return seconds of Transformers' continuous batching, after its own warm-up."""
    import transformers

    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    loaded = load(model, dtype=torch.bfloat16).to(device).eval()
    configured: Any = transformers.GenerationConfig
    config = configured(do_sample=False, max_new_tokens=max(OUTPUTS), eos_token_id=-1)
    with loaded.continuous_batching_context_manager(generation_config=config) as manager:
        began = time.perf_counter()
        for request in batch:
            manager.add_request(list(request.prompt), max_new_tokens=request.output_len)
        tokens = 0
        for _ in batch:
            result = manager.get_result(timeout=300)
            if result is None:
                raise RuntimeError("it gave no result for 300 s")
            tokens += len(result.generated_tokens)
        seconds = time.perf_counter() - began
    expect(tokens, sum(request.output_len for request in batch))
    return seconds


def _forget(device: torch.device) -> None:
    """Free the engine's memory, which the peer needs."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
