"""Plimsoll: the `LLM` class in process, and the server started like by a user."""

from __future__ import annotations

import time
from typing import Any

from command import PLIMSOLL
from serving.http_load import HttpServer
from serving.latency import expect
from serving.models import Shape
from serving.systems.base import KV_TOKENS
from serving.workloads import Request, Workload

MAX_LEN = 2048


class PlimsollOffline:
    """The `LLM` class, in process."""

    def __init__(self, shape: Shape, model: str, threads: int) -> None:
        from plimsoll_runtime import LLM

        kv = str(KV_TOKENS * shape.kv_bytes)
        self._llm = LLM(model, dtype="bfloat16", threads=threads, kv_memory=kv, max_model_len=MAX_LEN)

    def run(self, workload: Workload) -> dict[str, Any]:
        """Run all requests at once, offline, with an empty prefix cache."""
        self._llm.reset_prefix_cache()
        if workload.primer is not None:
            self._generate([workload.primer])
        start = time.perf_counter()
        tokens = self._generate(workload.requests)
        seconds = time.perf_counter() - start
        expect(tokens, workload.output_tokens)
        return {"seconds": seconds}

    def close(self) -> None:
        self._llm.close()

    def _generate(self, requests: tuple[Request, ...] | list[Request]) -> int:
        from plimsoll_runtime import SamplingParams

        params = [SamplingParams(temperature=0.0, max_tokens=r.output_len, ignore_eos=True) for r in requests]
        results = self._llm.generate([list(r.prompt) for r in requests], params)
        return sum(len(r.outputs[0].token_ids) for r in results)


class PlimsollServer(HttpServer):
    """`plimsoll serve` on a free loopback port."""

    def __init__(self, shape: Shape, model: str, threads: int) -> None:
        kv = str(KV_TOKENS * shape.kv_bytes)
        command = [*PLIMSOLL, "serve", model, "--name", self.model, "--dtype", "bfloat16", "--kv-memory", kv]
        super().__init__([*command, "--max-model-len", str(MAX_LEN), "--threads", str(threads)])
