"""`PYTHONPATH=benchmarks python -m fallback.run`: models on Transformers code in Plimsoll's engine, compared with
Transformers' own `generate`.

First eight requests of one length, which `generate` takes as a batch (or one by one if a class cannot batch), then
eight of different lengths, one by one. Both sides alternate in one process, with equally many threads.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models

from fallback.classes import CLASSES, VOCAB, Class
from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.driver.build.model_facts import outline_of
from plimsoll_runtime.models.transformers_code.outline import TransformersOutline
from provenance import provenance

FLOOR = 0.5
REQUESTS, PROMPT, ANSWER = 8, 48, 24
MIXED = tuple(range(16, 16 + 8 * REQUESTS, 8))

Prompts = Sequence[Sequence[int]]


def measure(chosen: Class, rounds: int, threads: int) -> dict[str, Any]:
    """Return the tokens per second of Plimsoll (`ours`) and `generate` (`theirs`), and the median of ours over theirs,
    for requests of one length and of several.
    """
    with tempfile.TemporaryDirectory() as folder:
        _save(chosen, folder)
        stacks = _stacks(Path(folder))
        theirs = _loaded(folder)
        ours = LLM(folder, model_impl="transformers", dtype="float32", threads=threads, kv_memory="512MiB")
        torch.set_num_threads(threads)
        found: dict[str, Any] = {"class": chosen.name, "kind": chosen.kind, "stacks": stacks}
        for what, lengths, together in (("alike", (PROMPT,) * REQUESTS, stacks), ("mixed", MIXED, False)):
            speeds = []
            for number in range(rounds + 1):
                prompts = _prompts(lengths, number)
                speeds.append((_ours(ours, prompts), _theirs(theirs, prompts, together=together)))
            del speeds[0]  # this warms both up
            found[what] = {
                "ours": statistics.median(a for a, _ in speeds),
                "theirs": statistics.median(b for _, b in speeds),
                "ratio": statistics.median(a / b for a, b in speeds),
            }
        ours.close()
    return found


def _save(chosen: Class, folder: str) -> None:
    import transformers

    torch.manual_seed(0)
    build: Any = transformers.AutoModelForCausalLM.from_config
    build(chosen.made(), dtype=torch.float32).save_pretrained(folder)
    words = models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0")
    Tokenizer(words).save(f"{folder}/tokenizer.json")


def _stacks(folder: Path) -> bool:
    outline = outline_of(json.loads((folder / "config.json").read_text()), "transformers")
    assert isinstance(outline, TransformersOutline)
    return outline.own is None or outline.own.axes is not None


def _loaded(folder: str) -> Any:
    import transformers

    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    return load(folder, dtype=torch.float32).eval()


def _prompts(lengths: Sequence[int], seed: int) -> Prompts:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCAB, (length,), generator=generator).tolist() for length in lengths]


def _ours(llm: LLM, prompts: Prompts) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True)
    began = time.perf_counter()
    results = llm.generate(prompts, params)
    seconds = time.perf_counter() - began
    return sum(len(result.outputs[0].token_ids) for result in results) / seconds


def _theirs(model: Any, prompts: Prompts, *, together: bool) -> float:
    batches = [prompts] if together else [[prompt] for prompt in prompts]
    tokens, began = 0, time.perf_counter()
    with torch.inference_mode():
        for batch in batches:
            ids = torch.tensor(batch)
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=ANSWER,
                max_new_tokens=ANSWER,
            )
            tokens += found.numel() - ids.numel()
    return tokens / (time.perf_counter() - began)


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table with a row for each class."""
    lines = [
        "| class | keeps | 8 of one length: ours, `generate` (tokens/s), ratio | 8 of mixed lengths |",
        "|---|---|---|---|",
    ]
    for each in results:
        alike, mixed = (
            f"{r['ours']:.0f}, {r['theirs']:.0f}, **{r['ratio']:.2f}x**" for r in (each["alike"], each["mixed"])
        )
        lines.append(f"| {each['class']} | {each['kind']} | {alike} | {mixed} |")
    return "\n".join(lines)


def main() -> int:
    """Measure and print. Return 1 if a ratio of a class is below FLOOR, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("only", nargs="*", help="these classes alone")
    args = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    results = []
    for chosen in CLASSES:
        if not args.only or chosen.name in args.only:
            results.append(measure(chosen, args.rounds, args.threads))
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    print(json.dumps(provenance(), indent=1))
    print(table(results))
    return 1 if any(r[what]["ratio"] < FLOOR for r in results for what in ("alike", "mixed")) else 0


if __name__ == "__main__":
    sys.exit(main())
