"""`python -m waking.run`: time from a wake request for a model to its first token, without HTTP.

Four ways: from its files in a new process, from an image in a new process, from an image in a process forked on demand,
and in a standby process, like in a host. Also measures an engine's memory apart from its image: its private memory
before the wake, and its anonymous memory after the output, which includes shared memory.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import question
from options import Options
from plimsoll_runtime.driver.clients.async_client import AsyncEngine
from plimsoll_runtime.driver.process.handshake import Grant, Needs
from plimsoll_runtime.driver.process.standby import ForkServer, StandbyProcess
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.execution.memory.system import footprint
from plimsoll_runtime.weights.image import Image
from serving import models, quiet
from tables import Sheet

MIB = 2**20
PROMPT = list(range(300, 332))
MODEL_LEN = 2048
WAYS = {"files": "from files", "image": "from an image", "fork": "forked then", "standby": "standing by"}
SHAPES = (models.SMALL, models.DEMO)


def measure(chosen: Options) -> dict[str, Any]:
    """Return medians of seconds for each model, by the way in which it wakes (WAYS)."""
    wanted = [shape for shape in SHAPES if not chosen.only or shape.name in chosen.only]
    return {"cases": [asyncio.run(_case(shape.name, models.source(shape), chosen)) for shape in wanted]}


def table(result: dict[str, Any]) -> Sheet:
    """Return a row per model."""
    rows = [
        [
            case["model"],
            *(f"{case[way]['seconds']:.2f}" for way in WAYS),
            f"{case['standby']['slowest']:.2f}",
            *(f"{case[key] / MIB:.0f}" for key in ("image_bytes", "overhead_bytes", "anonymous_bytes")),
        ]
        for case in result["cases"]
    ]
    heads = ["model", *WAYS.values(), "slowest of these", "image, MiB", "process", "after"]
    return Sheet("Seconds to the first token, median", heads, rows)


async def _case(name: str, model: str, chosen: Options) -> dict[str, Any]:
    config = EngineConfig(
        model=model, dtype="bfloat16", threads=chosen.threads, max_model_len=MODEL_LEN, max_batch_tokens=512
    )
    server = ForkServer.spawn()
    await server.ready()
    needs = await _needs(server, config)
    grant = Grant(weights=needs.image + needs.private, workspace=needs.workspace, kv=needs.kv_least)
    image = Image.create(needs.image, name)
    rounds: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    try:
        await _first_token(config, image=image, grant=grant)
        for _ in range(chosen.rounds):
            rounds["files"].append(await _first_token(config, grant=grant))
            rounds["image"].append(await _first_token(config, image=image, grant=grant))
            rounds["fork"].append(await _first_token(config, server.fork, image=image, grant=grant))
            standby = await server.fork()
            await standby.ready()
            rounds["standby"].append(await _first_token(config, standby=standby, image=image, grant=grant))
    finally:
        server.close()
        image.close()
    return {
        "model": name,
        "needs": {field: getattr(needs, field) for field in needs.__struct_fields__},
        **{way: _summary(found) for way, found in rounds.items()},
        **{key: rounds["standby"][-1][key] for key in ("image_bytes", "overhead_bytes", "anonymous_bytes")},
    }


async def _needs(server: ForkServer, config: EngineConfig) -> Needs:
    standby = await server.fork()
    try:
        return await standby.needs(config)
    finally:
        standby.close()


async def _first_token(
    config: EngineConfig, fork: Callable[[], Awaitable[StandbyProcess]] | None = None, **options: Any
) -> dict[str, float]:
    """Start an engine, generate the first token of a prompt of 32 tokens, and end. Return the seconds from the call to
    that token, and the engine's memory. `fork` creates the process first.
    """
    busy = quiet.cores_in_use()
    start = time.perf_counter()
    if fork is not None:
        options["standby"] = await fork()
    engine = await AsyncEngine.start(config, **options)
    loaded = time.perf_counter() - start
    try:
        context = RequestContext(SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True), seed=0)
        async with aclosing(engine.generate(AddRequest("first", PROMPT, context))) as answer:
            await anext(answer)
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "ready_seconds": loaded,
            "cores_used_by_others": round(busy, 2),
            "image_bytes": engine.info.image_bytes,
            "overhead_bytes": engine.info.overhead_bytes,
            "anonymous_bytes": footprint(engine.pid).anonymous,
        }
    finally:
        await engine.stop()


def _summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    seconds = [each["seconds"] for each in rounds]
    return {"seconds": statistics.median(seconds), "slowest": max(seconds), "rounds": rounds}


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
