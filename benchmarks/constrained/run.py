"""`python -m constrained.run`: W2 with a schema for every second request, compared with W2 without.

One engine; each round runs W2 four times: with, without, without, with (or reversed), so that a machine that slows down
favours neither. The model is "small" with a byte-level tokenizer of 32,000 tokens. A schema requires a list of at least
`DOCUMENTS` documents of one of the eight kinds in `structured.run`, which no output completes: both sides generate
equally many tokens. Each run of W2 has new schemas, so that compiling them is included.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import question
from options import Options
from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.engine.protocol.constraint import Constraint
from serving import models, quiet
from serving.latency import expect
from serving.systems.base import KV_TOKENS
from serving.workloads import workload
from structured.run import END, TRAINED, cases, trained_tokenizer
from tables import Sheet

DOCUMENTS = 300
TURNS = ((True, False, False, True), (False, True, True, False))


def measure(chosen: Options) -> dict[str, Any]:
    """Return by what share W2 takes longer with schemas than without, median of rounds."""
    kv = str(KV_TOKENS * models.SMALL.kv_bytes)
    model = str(folder())
    llm = LLM(model, dtype="bfloat16", threads=chosen.threads, kv_memory=kv, max_model_len=2048, prefix_caching=False)
    _seconds(llm, min(chosen.scale, 0.1), 0, True)
    rounds = []
    for number in range(1, chosen.rounds + 1):
        busy, seconds = quiet.cores_in_use(), {True: 0.0, False: 0.0}
        _seconds(llm, min(chosen.scale, 0.1), -number, False)  # so that each turn follows other work
        for turn, constrained in enumerate(TURNS[number % 2]):
            seconds[constrained] += _seconds(llm, chosen.scale, 4 * number + turn, constrained)
        cost = seconds[True] / seconds[False] - 1
        rounds.append(
            {"with": seconds[True], "without": seconds[False], "cost": cost, "cores_used_by_others": round(busy, 2)}
        )
    return {"cost": statistics.median(float(r["cost"]) for r in rounds), "rounds": rounds}


def table(result: dict[str, Any]) -> Sheet:
    """Return a table with one row."""
    seconds = [statistics.median(r[name] for r in result["rounds"]) / 2 for name in ("with", "without")]
    row = ["W2", *(f"{s:.2f}" for s in seconds), f"{result['cost']:+.2%}"]
    return Sheet("Half of the requests under schemas", ["requests", "with, s", "without, s", "cost"], [row])


def folder() -> Path:
    """Return the folder of "small" with a text tokenizer, which schemas need, and create it if missing."""
    made = models.folder(models.SMALL)
    target = made.with_name(f"{made.name}-text")
    if not (target / "tokenizer.json").is_file():
        target.mkdir(exist_ok=True)
        for weights in made.glob("*.safetensors"):
            (target / weights.name).unlink(missing_ok=True)
            (target / weights.name).symlink_to(weights)
        tokenizer = trained_tokenizer(TRAINED[0])
        ends = {"eos_token_id": tokenizer.token_to_id(END)}
        (target / "config.json").write_text(json.dumps(json.loads((made / "config.json").read_text()) | ends))
        tokenizer.save(str(target / "tokenizer.json"))
    return target


def schemas(title: str) -> list[dict[str, Any]]:
    """Return one schema for each kind of document. `title` is part of each, so that a new title makes new schemas."""
    made = []
    for case in cases().values():
        one = dict(case.schema)
        shared = {"$defs": one.pop("$defs")} if "$defs" in one else {}
        made.append({"title": title, "type": "array", "minItems": DOCUMENTS, "items": one, **shared})
    return made


def _seconds(llm: LLM, scale: float, number: int, constrained: bool) -> float:
    work = workload("W2", scale, number)
    wanted = schemas(f"turn {number}")
    params = [
        SamplingParams(
            temperature=0.0, max_tokens=request.output_len, constraint=Constraint.json(wanted[i // 2 % len(wanted)])
        )
        if constrained and i % 2 == 0
        else SamplingParams(temperature=0.0, max_tokens=request.output_len, ignore_eos=True)
        for i, request in enumerate(work.requests)
    ]
    start = time.perf_counter()
    results = llm.generate([list(request.prompt) for request in work.requests], params)
    seconds = time.perf_counter() - start
    expect(_tokens(results), work.output_tokens)
    return seconds


def _tokens(results: Sequence[Any]) -> int:
    return sum(len(result.outputs[0].token_ids) for result in results)


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
