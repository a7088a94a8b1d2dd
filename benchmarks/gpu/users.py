"""Streaming users of the server: their tokens compared with offline use, first tokens with their bound, and gaps."""

from __future__ import annotations

import gc
from typing import Any

import torch

from command import PLIMSOLL
from gpu import mixed
from gpu.clock import Limits
from serving.http_load import HttpServer
from serving.models import Shape
from serving.roofline import Machine, burst_seconds
from serving.workloads import Workload

USERS, REQUESTS = 64, 128


def measure(
    model: str, shape: Shape, known: Limits, *options: str, users: int = USERS, count: int = REQUESTS, **offline: Any
) -> dict[str, Any]:
    """Run `LLM.generate` over all requests at once, then a server whose users each send their next request after a
    response. `of_offline`: seconds of the former over seconds of the latter. `options` are for the server, `offline`
    for `LLM`. Both get new tokens, so that there are no prefix hits.
    """
    [alone] = mixed.of_ours(model, [mixed.requests(count, shape, 1)], **offline)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    work, warm = (
        Workload("", "", mixed.requests(number, shape, seed), users=users, shape=shape)
        for number, seed in ((count, 2), (users, 3))
    )
    command = [*PLIMSOLL, "serve", model, "--name", HttpServer.model, "--dtype", "bfloat16"]
    server = HttpServer([*command, "--max-model-len", str(mixed.LONGEST), *options])
    try:
        server.run(warm)
        found = server.run(work)
    finally:
        server.close()
    bound = 1e3 * burst_seconds(work, Machine(known.bandwidth, known.rate))
    gaps = found["itl_ms"]
    return {
        "users": users,
        "requests": count,
        "seconds": round(found["seconds"], 3),
        "offline_seconds": round(alone, 3),
        "of_offline": round(alone / found["seconds"], 4),
        "ttft_burst_ms": found["ttft_burst_ms"],
        "itl_ms": gaps,
        "burst_bound_ms": round(bound, 2),
        "ttft_p99_of_bound": round(found["ttft_burst_ms"]["p99"] / bound, 3),
        "itl_p99_of_median": round(gaps["p99"] / gaps["p50"], 3) if gaps["p50"] else 0.0,
    }
