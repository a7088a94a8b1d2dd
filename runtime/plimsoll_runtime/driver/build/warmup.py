"""The last stage of building an engine: first steps, so that no request waits for one-time work."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from plimsoll_runtime.driver.build.assembly import Assembled
from plimsoll_runtime.driver.build.loader import LoadedModel
from plimsoll_runtime.driver.build.memory_plan import Budget
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import Runner
from plimsoll_runtime.engine.kv.block_pool import PADDING_BLOCK
from plimsoll_runtime.engine.protocol.messages import RequestContext
from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, SlotInit, StepPlan, TableChange
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.execution.graphs.capture import CaptureBounds
from plimsoll_runtime.execution.graphs.decode import GraphBackend
from plimsoll_runtime.execution.kv.states import OwnCaches
from plimsoll_runtime.execution.memory.kv_budget import KvBudget
from plimsoll_runtime.execution.warmup import compile_kernels
from plimsoll_runtime.parallel.rank import Rank
from plimsoll_runtime.utils.progress import Progress

STAGE = "warm-up"
LOADED_PROMPT, WOKEN_PROMPT = 64, 16
"""Tokens of the warm-up prompt. A waking engine uses fewer, because a request waits for it."""
WOKEN_SECONDS = 2.0
"""Most seconds that a waking engine captures graphs."""


def warm_up(
    config: EngineConfig,
    loaded: LoadedModel,
    budget: Budget,
    assembled: Assembled,
    progress: Progress,
    *,
    rank: Rank | None = None,
) -> tuple[int, float]:
    """Run the first steps; on a GPU also compile kernel variants and capture graphs.

    Ranks of a group run the same steps, whether they were loaded or woken. Return the number of prompt tokens, and the
    seconds that the prefill took.
    """
    progress(STAGE, 0.0)
    most = WOKEN_PROMPT if loaded.woken or rank is not None else LOADED_PROMPT
    prompt_len = max(1, min(config.max_batch_tokens, budget.kv.max_model_len - 1, most))
    seconds = _first_steps(assembled.runner, prompt_len, budget.kv, decodes=loaded.model.pooling is None)
    if assembled.cache.device.type == "cuda":
        bound = min(config.graph_seconds, WOKEN_SECONDS) if loaded.woken else config.graph_seconds
        with nullcontext() if rank is None else rank.collectives.muted():
            # Ranks have different kernels to compile, and so may run different passes.
            _compile_kernels(config, budget, assembled)
        with torch.inference_mode():
            assembled.capture_graphs(CaptureBounds(bound, budget.graphs), lambda fraction: progress(STAGE, fraction))
    progress(STAGE, 1.0)
    return prompt_len, seconds


def _compile_kernels(config: EngineConfig, budget: Budget, assembled: Assembled) -> None:
    """Compile the kernels of serving, if Plimsoll's kernels compute attention. Other backends compile nothing for a
    batch, and Transformers code with its own caches does not use them.
    """
    if isinstance(assembled.forward_pass.backend, GraphBackend) and not isinstance(assembled.states, OwnCaches):
        longest = min(budget.kv.max_model_len, assembled.cache.num_blocks * budget.kv.block_size)
        compile_kernels(assembled.forward_pass, assembled.cache, longest, config.max_sequences, config.max_batch_tokens)


def _first_steps(runner: Runner, prompt_len: int, kv: KvBudget, *, decodes: bool) -> float:
    """Run a prefill and, for generating models, a decode step into the padding block.

    Return the seconds that the prefill took.
    """
    blocks = [PADDING_BLOCK] * -(-(prompt_len + 1) // kv.block_size)
    tables = [TableChange(group, 0, 0, blocks) for group in range(len(kv.groups))]
    context = RequestContext(SamplingParams(temperature=0.0), seed=0)

    def step(tokens: Sequence[int], start: int, init: bool) -> None:
        new = [SlotInit(slot=0, context=context, prompt_ids=tokens)] if init else []
        sequence = ScheduledSequence(slot=0, start=start, token_ids=tokens, changes=tables if init else (), sample=True)
        runner.run(StepPlan([sequence], new_slots=new)).result()

    began = time.monotonic()
    step([0] * prompt_len, 0, init=True)
    seconds = time.monotonic() - began
    if decodes:
        step([0], prompt_len, init=False)
    runner.run(StepPlan([], freed_slots=[0])).result()
    return seconds
