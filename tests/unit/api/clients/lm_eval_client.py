"""Scores a model with lm-eval's `hf` and, over HTTP, its `local-completions`; runs in the environment that has it.

`lm_eval_client.py SOURCE MODEL TASKS URL [URL...]` prints as JSON, for "hf" and for each URL, the result of each
task. SOURCE is a folder, or a GGUF file, which Transformers reads for `hf`, and its tokenizer for both.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.models.huggingface import HFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager


def scored(model: Any, tasks: str) -> dict[str, Any]:
    manager = TaskManager(include_path=tasks, include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=model, tasks=sorted(manager.all_tasks), task_manager=manager, bootstrap_iters=0, log_samples=True
    )
    answers = {
        name: [sample["filtered_resps"] for sample in sorted(samples, key=lambda sample: sample["doc_id"])]
        for name, samples in found["samples"].items()
    }
    return {"results": found["results"], "answers": answers}


def by_hf(source: Path) -> HFLM:
    folder, gguf = (source, None) if source.is_dir() else (source.parent, source.name)
    return HFLM(pretrained=str(folder), gguf_file=gguf, dtype="float32", device="cpu", batch_size=1)


def over_http(url: str, name: str, tokenizer: str) -> LocalCompletionsAPI:
    return LocalCompletionsAPI(
        model=name,
        base_url=f"{url}/v1/completions",
        tokenizer=tokenizer,
        add_bos_token=True,  # which `hf` leaves to the tokenizer
        num_concurrent=2,
        batch_size=3,
        max_retries=1,
    )


if __name__ == "__main__":
    source, name, tasks, *urls = sys.argv[1:]
    with tempfile.TemporaryDirectory() as tokenizer:
        hf = by_hf(Path(source))
        hf.tokenizer.save_pretrained(tokenizer)
        told = {"hf": scored(hf, tasks)}
        told |= {url: scored(over_http(url, name, tokenizer), tasks) for url in urls}
    print(json.dumps(told))
