"""The engine of benchmarks that count or time a step without its arithmetic: "tiny" on the CPU kernels."""

from __future__ import annotations

import random
from collections.abc import Iterator

from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.step_tracing import StepTracing
from serving import models


def tiny_engine(max_sequences: int, step_tracing: StepTracing | None = None) -> EngineCore:
    """Return an engine in this process with one thread; steps do not overlap."""
    config = EngineConfig(
        model=models.source(models.TINY),
        dtype="bfloat16",
        threads=1,
        kv_memory="256MiB",
        max_model_len=1024,
        max_sequences=max_sequences,
        overlap=False,
        step_tracing=step_tracing,
    )
    return build_engine(config, lambda stage, fraction: None)


def start_decoding(
    engine: EngineCore, sequences: int, prompt: int, params: SamplingParams, names: Iterator[int], *, seed: int = 0
) -> None:
    """Add `sequences` requests with `prompt` random tokens each and the next numbers of `names` as ids, and step until
    all of them decode.
    """
    rng = random.Random(seed)
    for _ in range(sequences):
        tokens = [rng.randrange(300, models.TINY.vocab) for _ in range(prompt)]
        engine.add(AddRequest(str(next(names)), tokens, RequestContext(params, params.output_seed())))
    while len(engine.step().outputs) < sequences:
        pass
