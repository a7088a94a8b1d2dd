"""`python -m kv_waste.run`: the share of allocated KV cache without tokens, for lengths like ShareGPT's.

Runs the real scheduler and its block pool over a runner that computes nothing, because only integers matter.
"""

from __future__ import annotations

import math
import random
import sys
from typing import Any

import question
from no_model import no_model
from options import Options
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo, RequestContext
from plimsoll_runtime.engine.protocol.plan import SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.execution.inputs.batch_state import BatchState
from tables import Sheet

REQUESTS, VOCAB, MAX_LEN, TOKENS_OF_CACHE = 1000, 32000, 4096, 131072
MEAN_PROMPT, MEAN_OUTPUT, SPREAD = 161, 338, 1.0
"""Means of ShareGPT's turns in the PagedAttention paper (its figure 11); lengths are log-normal around them."""


class Watcher:
    """A runner that returns the same token for every sequence. Over all steps it sums the tokens that the sequences'
    blocks have space for (`allocated`) and those they contain (`held`).
    """

    def __init__(self, config: EngineConfig, num_blocks: int) -> None:
        self._block_size = config.block_size
        self._state = BatchState(config.max_sequences, 1, num_blocks)
        self.allocated = 0
        self.held = 0

    def run(self, plan: StepPlan) -> StepResult:
        """Return one token for each sequence that needs one."""
        self._state.begin(plan)
        [tables] = self._state.tables
        self.allocated += self._block_size * len({b for s in plan.sequences for b in tables.table(s.slot)})
        self.held += sum(s.start + len(s.token_ids) for s in plan.sequences)
        return StepResult([SequenceOutput(token_id=3 if s.sample else None) for s in plan.sequences])


def measure(chosen: Options) -> dict[str, Any]:
    """Return `waste`: the share of the allocated cache that has no token, summed over all steps, for the engine's block
    size. Lengths are fixed, so another round would give the same.
    """
    config = EngineConfig(model="none", prefix_caching=False, overlap=False)
    info = _info(config)
    watcher = Watcher(config, info.num_blocks)
    core = EngineCore(config, info, watcher)
    rng = random.Random(0)
    lengths = [(_length(rng, MEAN_PROMPT), _length(rng, MEAN_OUTPUT)) for _ in range(round(REQUESTS * chosen.scale))]
    for number, (prompt, output) in enumerate(lengths):
        context = RequestContext(SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True), seed=0)
        core.add(AddRequest(str(number), [rng.randrange(3, VOCAB) for _ in range(prompt)], context))
    while core.has_work:
        core.step()
    return {
        "block_size": config.block_size,
        "requests": len(lengths),
        "mean_prompt": round(sum(p for p, _ in lengths) / len(lengths), 1),
        "mean_output": round(sum(o for _, o in lengths) / len(lengths), 1),
        "waste": 1 - watcher.held / watcher.allocated,
        "preemptions": core.stats.preemptions,
    }


def table(result: dict[str, Any]) -> Sheet:
    """Return a table with one row."""
    row = [f"{result['requests']} requests", f"{result['mean_prompt']} / {result['mean_output']}"]
    headings = ["requests", "mean prompt / output", "block", "waste"]
    title = "Allocated KV cache that holds no token, over all steps"
    return Sheet(title, headings, [[*row, str(result["block_size"]), f"{result['waste']:.2%}"]])


def _length(rng: random.Random, mean: int) -> int:
    """Draw a log-normal length with this mean, at most half of the longest sequence."""
    drawn = rng.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD)
    return min(MAX_LEN // 2, max(4, round(drawn)))


def _info(config: EngineConfig) -> EngineInfo:
    return no_model(
        vocab_size=VOCAB,
        max_model_len=MAX_LEN,
        block_size=config.block_size,
        num_blocks=1 + TOKENS_OF_CACHE // config.block_size,
    )


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
