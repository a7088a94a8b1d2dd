"""The systems that take turns. Each loads once, then runs workloads; imports stay inside, one process a system."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from serving.workloads import Workload

STATIC_BATCH = 64


class System(Protocol):
    """Something that can answer a workload's requests in process."""

    def run(self, workload: Workload) -> dict[str, Any]:
        """Answer every request; `seconds` and any figures worth keeping."""


class Plimsoll:
    """Our `LLM`, in process. Its prefix cache is emptied before each run, so that nothing is primed."""

    def __init__(self, model: Path, threads: int) -> None:
        from plimsoll_runtime import LLM

        self._llm = LLM(str(model), dtype="bfloat16", threads=threads, kv_memory="2GiB", max_model_len=2048)

    def run(self, workload: Workload) -> dict[str, Any]:
        """All requests at once, offline."""
        from plimsoll_runtime import SamplingParams

        self._llm.reset_prefix_cache()
        params = [SamplingParams(temperature=0.0, max_tokens=r.output_len, ignore_eos=True) for r in workload.requests]
        start = time.perf_counter()
        results = self._llm.generate([list(r.prompt) for r in workload.requests], params)
        seconds = time.perf_counter() - start
        tokens = sum(len(r.outputs[0].token_ids) for r in results)
        if tokens != workload.output_tokens:
            raise RuntimeError(f"{tokens} tokens came instead of {workload.output_tokens}")
        return {"seconds": seconds}


class TransformersStatic:
    """`generate` of Transformers over left-padded batches of 64, each as long as its longest request."""

    def __init__(self, model: Path, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from serving.roofline import device

        torch.set_num_threads(threads)
        self._device = device()
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        self._model = loaded.to(self._device)

    def run(self, workload: Workload) -> dict[str, Any]:
        """Batch after batch; only the tokens that were asked for count."""
        import torch

        start = time.perf_counter()
        for first in range(0, len(workload.requests), STATIC_BATCH):
            batch = workload.requests[first : first + STATIC_BATCH]
            width = max(len(r.prompt) for r in batch)
            ids = torch.tensor([[0] * (width - len(r.prompt)) + list(r.prompt) for r in batch])
            mask = torch.tensor([[0] * (width - len(r.prompt)) + [1] * len(r.prompt) for r in batch])
            count = max(r.output_len for r in batch)
            with torch.inference_mode():
                self._model.generate(
                    input_ids=ids.to(self._device),
                    attention_mask=mask.to(self._device),
                    do_sample=False,
                    min_new_tokens=count,
                    max_new_tokens=count,
                    pad_token_id=0,
                )
        # The last tokens are on the host by now: generate looks at each for the end of the sequence.
        return {"seconds": time.perf_counter() - start}


SYSTEMS: dict[str, type[Plimsoll] | type[TransformersStatic]] = {
    "plimsoll": Plimsoll,
    "transformers-static": TransformersStatic,
}
