"""`PYTHONPATH=benchmarks python -m choices.run`: memory and delays that one long prompt with many choices causes.

The engine is real, in its own process, but its runner computes nothing: memory and time are those of the scheduler, the
messages and the server's event loop. A concurrent streaming request shows how long it is delayed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable

import psutil

from no_model import no_model
from plimsoll_runtime.driver.clients.async_client import AsyncEngine
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext
from plimsoll_runtime.engine.protocol.plan import SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.engine.protocol.prompt import Prompt
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams

BLOCK_SIZE, VOCAB = 16, 32000


class NoRunner:
    """Completes each step immediately, always with the same token."""

    def run(self, plan: StepPlan) -> StepResult:
        return StepResult([SequenceOutput(1) if s.sample else SequenceOutput() for s in plan.sequences])


def build(config: EngineConfig, progress: Callable[[str, float], None]) -> EngineCore:
    """Return an engine over `NoRunner`, with KV blocks for two prompts of the largest length."""
    limit = config.max_model_len or 1
    info = no_model(
        model=config.model,
        vocab_size=VOCAB,
        max_model_len=limit,
        block_size=BLOCK_SIZE,
        num_blocks=2 * limit // BLOCK_SIZE,
        eos_token_ids=[],
    )
    return EngineCore(config, info, NoRunner())


async def measure(tokens: int, answers: int) -> dict[str, float]:
    """Send one prompt with `answers` choices next to a stream. Return the memory in MB that the server and the engine
    gain, and the longest delays in ms of the server's event loop and of the stream.
    """
    config = EngineConfig(model="none", max_model_len=tokens + 1024, max_batch_tokens=2048, max_sequences=4)
    engine = await AsyncEngine.start(config, factory="choices.run:build")
    server, child = psutil.Process(), psutil.Process(engine.pid)
    gaps: dict[str, list[float]] = {"loop": [], "stream": []}

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            gaps["loop"].append(time.perf_counter() - before)

    async def read(request: AddRequest, into: list[float] | None = None) -> None:
        before = time.perf_counter()
        async for _ in engine.generate(request):
            now = time.perf_counter()
            if into is not None:
                into.append(now - before)
            before = now

    endless = RequestContext(SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True), seed=0)
    beside = [asyncio.create_task(read(AddRequest("beside", [5] * 8, endless), gaps["stream"]))]
    beside.append(asyncio.create_task(tick()))
    while len(gaps["stream"]) < 50:  # noqa: ASYNC110 (a benchmark may look)
        await asyncio.sleep(0.01)
    for seen in gaps.values():
        seen.clear()
    before = [process.memory_info().rss for process in (server, child)]
    prompt = [300 + i % 30000 for i in range(tokens)]
    asked = [asyncio.create_task(read(request)) for request in requests(prompt, answers)]
    while engine.stats.waiting + engine.stats.running < answers + 1:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    after = [process.memory_info().rss for process in (server, child)]
    for task in (*asked, *beside):
        task.cancel()
    await asyncio.gather(*asked, *beside, return_exceptions=True)
    await engine.stop()
    return {
        "server_mb": (after[0] - before[0]) / 1e6,
        "engine_mb": (after[1] - before[1]) / 1e6,
        "loop_ms": 1e3 * max(gaps["loop"]),
        "stream_ms": 1e3 * max(gaps["stream"]),
    }


def requests(prompt: list[int], answers: int) -> list[AddRequest]:
    """Return the engine requests, one per choice, that the server makes of one HTTP request with `n` = `answers`."""
    params = SamplingParams(temperature=1.0, max_tokens=64)
    shared = Prompt(prompt)
    contexts = [RequestContext(params, params.output_seed(index)) for index in range(answers)]
    return [AddRequest(f"r-{i}", shared, context, shares_prompt=answers > 1) for i, context in enumerate(contexts)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=131_000)
    parser.add_argument("--answers", type=int, default=128)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.tokens, given.answers)), indent=2))
