"""`python -m state_snapshots.run`: savings and cost of snapshots of recurrent states for a hybrid model.

A generated hybrid of Mamba 2 and attention, with snapshots and without, in three kinds of traffic (`--only` selects
some). `shared`: 12 prompts with 512 common tokens, at once. `turns`: two conversations of six turns in parallel, each
prompt the whole conversation so far. `nothing`: 12 prompts with nothing in common, which pay for steps that end at
snapshots. Two engines in one process; each round runs with, without, without, with, so that a machine that slows down
favours neither. Seconds are the process's CPU seconds on all cores.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tokenizers import Tokenizer, models

import question
from options import Options
from plimsoll_runtime import LLM, SamplingParams
from tables import Sheet

VOCAB, HIDDEN, LAYERS, ATTENTION_EVERY = 4096, 256, 6, 3
PROMPTS, SHARED, OWN, ANSWER = 12, 512, 64, 8
CONVERSATIONS, TURNS, SAID, ANSWERED = 2, 6, 96, 80
KV_MEMORY = "64MiB"
ORDER = (True, False, False, True)
"""Engines of a round in order: True is the one with snapshots."""

Prompt = list[int]


def measure(chosen: Options) -> dict[str, Any]:
    """Return medians over the rounds for each kind of traffic: CPU seconds with and without snapshots, their ratio
    (`time`), and the prompt tokens computed with snapshots over those without (`computed`).
    """
    with tempfile.TemporaryDirectory() as folder:
        _save(folder)
        engines = {on: _load(folder, chosen.threads, on) for on in (True, False)}
        found: dict[str, Any] = {}
        for kind, ask in TRAFFIC.items():
            if chosen.only and kind not in chosen.only:
                continue
            rounds = [_round(engines, ask, number, chosen.scale) for number in range(chosen.rounds + 1)]
            del rounds[0]  # this warms both up
            found[kind] = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
            found[kind]["rounds"] = rounds
        info, stats = engines[True].info, engines[True].stats.snapshots
        assert stats is not None
        state_bytes = info.snapshot_bytes // info.snapshots
        return {"snapshots": info.snapshots, "state_bytes": state_bytes, "taken": stats.taken, "kinds": found}


def _round(engines: Mapping[bool, LLM], ask: Ask, number: int, scale: float) -> dict[str, float]:
    seconds, computed = {True: 0.0, False: 0.0}, {True: 0, False: 0}
    for turn, on in enumerate(ORDER):
        # New tokens each time, else those of the previous turn would be cached.
        rng, llm = random.Random(len(ORDER) * number + turn), engines[on]
        before, began = llm.stats.prompt_tokens, time.process_time()
        ask(llm, rng, scale)
        seconds[on] += time.process_time() - began
        computed[on] += llm.stats.prompt_tokens - before
    return {
        "with": seconds[True] / 2,
        "without": seconds[False] / 2,
        "time": seconds[True] / seconds[False],
        "computed": computed[True] / computed[False],
    }


def ask_shared(llm: LLM, rng: random.Random, scale: float) -> None:
    """Send many prompts at once that start alike."""
    shared = _tokens(rng, SHARED)
    _answers(llm, [shared + _tokens(rng, OWN) for _ in range(_scaled(PROMPTS, scale))], ANSWER)


def ask_in_turns(llm: LLM, rng: random.Random, scale: float) -> None:
    """Run conversations, each of whose prompts is the conversation so far plus new tokens."""
    said = [list[int]() for _ in range(CONVERSATIONS)]
    for _ in range(_scaled(TURNS, scale)):
        prompts = [each + _tokens(rng, SAID) for each in said]
        said = [p + answer for p, answer in zip(prompts, _answers(llm, prompts, ANSWERED), strict=True)]


def ask_nothing_shared(llm: LLM, rng: random.Random, scale: float) -> None:
    """Send many prompts at once that have nothing in common."""
    _answers(llm, [_tokens(rng, SHARED + OWN) for _ in range(_scaled(PROMPTS, scale))], ANSWER)


Ask = Callable[[LLM, random.Random, float], None]
TRAFFIC: dict[str, Ask] = {"shared": ask_shared, "turns": ask_in_turns, "nothing": ask_nothing_shared}


def _answers(llm: LLM, prompts: list[Prompt], count: int) -> list[Prompt]:
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    return [list(result.outputs[0].token_ids) for result in llm.generate(prompts, params)]


def _tokens(rng: random.Random, count: int) -> Prompt:
    return [rng.randrange(3, VOCAB) for _ in range(count)]


def _scaled(count: int, scale: float) -> int:
    return max(3, round(count * scale))


def _save(folder: str) -> None:
    import transformers

    torch.manual_seed(0)
    kinds = ["attention" if layer % ATTENTION_EVERY == ATTENTION_EVERY - 1 else "mamba" for layer in range(LAYERS)]
    config = transformers.GraniteMoeHybridConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        layer_types=kinds,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=0,
        intermediate_size=4 * HIDDEN,
        shared_intermediate_size=4 * HIDDEN,
        mamba_n_heads=8,
        mamba_d_head=2 * HIDDEN // 8,
        mamba_n_groups=1,
        mamba_d_state=128,
        tie_word_embeddings=True,
    )
    build: Any = transformers.AutoModelForCausalLM.from_config
    build(config).bfloat16().save_pretrained(folder)
    words = models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0")
    Tokenizer(words).save(f"{folder}/tokenizer.json")


def _load(folder: str, threads: int, on: bool) -> LLM:
    count = None if on else 0
    return LLM(folder, dtype="bfloat16", threads=threads, kv_memory=KV_MEMORY, max_sequences=16, state_snapshots=count)


def table(result: dict[str, Any]) -> Sheet:
    """Return a row for each kind of traffic."""
    rows = [
        [
            kind,
            f"{1 - each['computed']:.1%}",
            f"{each['with']:.2f}",
            f"{each['without']:.2f}",
            f"{each['time']:.2f}",
        ]
        for kind, each in result["kinds"].items()
    ]
    mebibytes = result["state_bytes"] / 2**20
    title = f"A hybrid with {result['snapshots']} snapshots of {mebibytes:.2f} MiB"
    return Sheet(title, ["prompts", "not computed", "with, CPU s", "without, CPU s", "ratio"], rows)


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
