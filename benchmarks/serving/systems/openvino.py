"""OpenVINO GenAI's continuous batching, in process. It runs in the peers' own environment, without torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving.latency import Timeline, expect, latencies
from serving.models import Shape
from serving.systems.base import KV_TOKENS
from serving.workloads import Request, Workload

MAX_SEQUENCES, MAX_BATCH_TOKENS = 128, 2048
GIB = 2**30


class OpenVinoGenAi:
    """One pipeline over a GGUF with half-precision weights, computing in bfloat16, with prefix cache. Without AVX-512
    it computes in float32, because OpenVINO has no bfloat16 there, and its attention supports no other cache.
    """

    def __init__(self, shape: Shape, model: str, threads: int) -> None:
        import openvino_genai as genai

        scheduler = genai.SchedulerConfig()
        precision, widened = ("bf16", 1) if "avx512f" in Path("/proc/cpuinfo").read_text() else ("f32", 2)
        scheduler.cache_size = max(1, round(KV_TOKENS * shape.kv_bytes * widened / GIB))
        scheduler.max_num_seqs = MAX_SEQUENCES
        scheduler.max_num_batched_tokens = MAX_BATCH_TOKENS
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        options: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision}
        options["KV_CACHE_PRECISION"] = precision
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", options)
        self._next = 0

    def run(self, workload: Workload) -> dict[str, Any]:
        """Run as many requests at a time as there are users, or all; each user's next request follows immediately."""
        if workload.primer is not None:
            self._serve([workload.primer], 1)
        start = time.perf_counter()
        timelines = self._serve(workload.requests, workload.users or len(workload.requests))
        seconds = time.perf_counter() - start
        expect(sum(len(t.arrivals) for t in timelines), workload.output_tokens)
        measured = latencies(timelines, workload.users) if workload.users else {}
        return {"seconds": seconds, **measured}

    def close(self) -> None:
        pass

    def _serve(self, requests: tuple[Request, ...] | list[Request], users: int) -> list[Timeline]:
        """Return the times of each request's tokens, in the order in which the requests were sent."""
        todo, timelines = iter(requests), list[Timeline]()
        running = [served for _ in range(users) if (served := self._send(todo, timelines)) is not None]
        while running:
            self._pipeline.step()
            now = time.perf_counter()
            running = [
                served
                for handle, timeline in running
                if (served := self._advance(handle, timeline, now, todo, timelines)) is not None
            ]
        return timelines

    def _send(self, todo: Iterator[Request], timelines: list[Timeline]) -> tuple[Any, Timeline] | None:
        """Start the next request, or return None if none is left."""
        import numpy as np
        import openvino
        import openvino_genai as genai

        request = next(todo, None)
        if request is None:
            return None
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = request.output_len, True, False
        timelines.append(Timeline(time.perf_counter()))
        prompt = openvino.Tensor(np.array([request.prompt], dtype=np.int64))
        self._next += 1
        return self._pipeline.add_request(self._next, prompt, config), timelines[-1]

    def _advance(
        self, handle: Any, timeline: Timeline, now: float, todo: Iterator[Request], timelines: list[Timeline]
    ) -> tuple[Any, Timeline] | None:
        """Record the step's tokens of a request. Return it while it runs, then the next request that its user sends, or
        None if none is left.
        """
        from openvino_genai import GenerationStatus

        while handle.can_read():
            (output,) = handle.read().values()
            timeline.arrivals.extend([now] * len(output.generated_ids))
        if handle.get_status() == GenerationStatus.RUNNING:
            return handle, timeline
        if handle.get_status() != GenerationStatus.FINISHED:
            raise RuntimeError(f"a request ended with {handle.get_status()}")
        return self._send(todo, timelines)
