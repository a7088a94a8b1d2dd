"""`python -m kv_windows.run`: number of sequences of 4,096 tokens in a cache at once, if sliding windows free blocks.

Runs the real layouts and scheduler over a runner that computes nothing. Each model's layers in cache groups are
compared with one block table for all layers in a cache of as many bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import question
from no_model import no_model
from options import Options
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo, RequestContext
from plimsoll_runtime.engine.protocol.plan import SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.execution.kv.layout import KvLayout, kv_layout
from plimsoll_runtime.models.spec.attention import AttentionShape
from tables import Sheet

CONTEXT, LONGEST, VOCAB = 4096, 8192, 32000
BYTES_PER_ELEMENT = 2
MOST = 400
CACHE_SEQUENCES = 24
"""Size of the cache: that of this number of sequences of CONTEXT tokens, if all layers keep all tokens."""

MODELS: dict[str, tuple[int, int, int, int, int]] = {
    "Gemma 3 270M": (18, 6, 512, 1, 256),
    "Gemma 3 1B": (26, 6, 512, 1, 256),
    "Gemma 3 4B": (34, 6, 1024, 4, 256),
    "Gemma 3 12B": (48, 6, 1024, 8, 256),
    "Gemma 3 27B": (62, 6, 1024, 16, 128),
    "gpt-oss 20B": (24, 2, 128, 8, 64),
    "Gemma 3n E4B": (20, 5, 512, 2, 256),
    "Gemma 4 of 30 layers": (30, 6, 512, 4, 256),
}
"""Number of layers with their own keys, of which every n-th sees the whole context; window of the others; number of KV
heads and their size.
"""
OF_FULL = {"Gemma 4 of 30 layers": (4, 512)}
"""Number and size of KV heads in layers that see the whole context, if they differ."""


class Counter:
    """A runner that returns the same token for every sequence, and counts the last step's sequences: those past their
    prompts of CONTEXT tokens (`decodes`), and the others (`prompts`).
    """

    def __init__(self) -> None:
        self.decodes = 0
        self.prompts = 0

    def run(self, plan: StepPlan) -> StepResult:
        """Return one token for each sequence that needs one."""
        self.decodes = sum(s.start >= CONTEXT for s in plan.sequences)
        self.prompts = len(plan.sequences) - self.decodes
        return StepResult([SequenceOutput(token_id=3 if s.sample else None) for s in plan.sequences])


def shapes_of(model: str) -> list[AttentionShape]:
    """Return the attention shape of each layer that has its own keys."""
    layers, every, window, kv_heads, head_dim = MODELS[model]
    heads, size = OF_FULL.get(model, (kv_heads, head_dim))
    full = AttentionShape(heads, heads, size, 1.0)
    windowed = AttentionShape(kv_heads, kv_heads, head_dim, 1.0, window=window)
    return [full if layer % every == every - 1 else windowed for layer in range(layers)]


def held(layout: KvLayout, cache_bytes: int) -> int:
    """Run requests with prompts of CONTEXT tokens until the cache is full. Return how many sequences then decode at
    once while the rest wait.
    """
    config = EngineConfig(
        model="none", prefix_caching=False, overlap=False, max_sequences=MOST, max_batch_tokens=2 * CONTEXT
    )
    counter = Counter()
    core = EngineCore(config, _info(config, layout, cache_bytes), counter)
    for number in range(MOST):
        prompt = [3 + (number + i) % 1000 for i in range(CONTEXT)]
        params = SamplingParams(temperature=0.0, max_tokens=LONGEST, ignore_eos=True)
        core.add(AddRequest(str(number), prompt, RequestContext(params, seed=0)))
    core.step()
    while counter.prompts:
        core.step()
    assert core.stats.waiting, "the cache would hold more"
    return counter.decodes


def measure(chosen: Options) -> dict[str, Any]:
    """Return the number of sequences by model, with one block table for all layers and with cache groups. Another round
    would give the same.
    """
    found = {}
    for model in MODELS:
        shapes = shapes_of(model)
        grouped = kv_layout(shapes, LONGEST, 16, BYTES_PER_ELEMENT)
        plain = kv_layout([_without_window(shape) for shape in shapes], LONGEST, 16, BYTES_PER_ELEMENT)
        cache = CACHE_SEQUENCES * CONTEXT // 16 * plain.block_bytes
        one, many = held(plain, cache), held(grouped, cache)
        unused = 1 - plain.block_bytes / (len(grouped.groups) * grouped.block_bytes)
        found[model] = {
            "groups": len(grouped.groups),
            "one_table": one,
            "in_groups": many,
            "ratio": many / one,
            "unused": unused,
        }
    return {"context": CONTEXT, "models": found}


def table(result: dict[str, Any]) -> Sheet:
    """Return a row per model."""
    rows: list[Sequence[str]] = [
        [
            model,
            str(row["groups"]),
            str(row["one_table"]),
            str(row["in_groups"]),
            f"{row['ratio']:.2f}",
            f"{row['unused']:.1%}",
        ]
        for model, row in result["models"].items()
    ]
    title = f"Sequences of {result['context']:,} tokens in the same cache"
    return Sheet(title, ["model", "groups", "one table", "in groups", "ratio", "places unused"], rows)


def _without_window(shape: AttentionShape) -> AttentionShape:
    return AttentionShape(shape.heads, shape.kv_heads, shape.head_dim, shape.scale)


def _info(config: EngineConfig, layout: KvLayout, cache_bytes: int) -> EngineInfo:
    return no_model(
        device="cuda",
        vocab_size=VOCAB,
        max_model_len=LONGEST,
        block_size=layout.block_size,
        num_blocks=1 + cache_bytes // layout.block_bytes,
        groups=layout.rules,
    )


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
