"""Transformers' `generate` over left-padded batches of 64, each as long as its longest request."""

from __future__ import annotations

import time
from typing import Any

from serving.models import Shape
from serving.workloads import Workload

BATCH = 64


class TransformersStatic:
    """The model in bfloat16, in process."""

    def __init__(self, shape: Shape, model: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from serving.roofline import device

        torch.set_num_threads(threads)
        self._device = device()
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        self._model = loaded.to(self._device)

    def run(self, workload: Workload) -> dict[str, Any]:
        """Run batch after batch and return `seconds`. Tokens beyond a request's own length are generated, but do not
        count.
        """
        import torch

        start = time.perf_counter()
        for first in range(0, len(workload.requests), BATCH):
            batch = workload.requests[first : first + BATCH]
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
        # The last tokens are on the host, because generate checks each for the end of the sequence.
        return {"seconds": time.perf_counter() - start}

    def close(self) -> None:
        pass
