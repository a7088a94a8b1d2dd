"""Composes an engine: files, decoder, memory, cache, attention backend, runner, scheduler."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

import torch

from plimsoll_runtime.driver.probe import Probe
from plimsoll_runtime.engine.config import EngineConfig, overlaps
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.messages import EngineInfo
from plimsoll_runtime.engine.params import SamplingParams
from plimsoll_runtime.engine.plan import ScheduledSequence, SlotInit, StepPlan
from plimsoll_runtime.engine.timeline import Timeline
from plimsoll_runtime.execution.attention.select import select
from plimsoll_runtime.execution.attention.target import Target
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.memory import (
    DEFAULT_SHARE_CPU,
    DEFAULT_SHARE_GPU,
    KvBudget,
    free_memory,
    plan_kv_cache,
)
from plimsoll_runtime.execution.precision import choose_dtype
from plimsoll_runtime.execution.runner import ModelRunner
from plimsoll_runtime.execution.sampling.sampler import Sampler
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry import describe
from plimsoll_runtime.models.spec import DecoderSpec
from plimsoll_runtime.weights.sources import resolve

logger = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""Called with a stage's name and how far it is, from 0 to 1."""


def build_engine(config: EngineConfig, progress: Progress, probe: Probe | None = None) -> EngineCore:
    """Load a model and make it ready to step; `probe` may look into it.

    Raises SourceError, ModelError, MemoryLimitError or UsageError (see `errors`), each with what to do.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _set_threads(config.threads)
    files = resolve(config.model, config.revision, progress=progress)
    dtype = choose_dtype(config.dtype, files.config, device, quantised=files.format == "gguf")
    spec = describe(files.config)
    backend = select(config.attention_backend, Target(device, dtype, spec.attention, config.block_size))
    decoder = load_decoder(files, spec, dtype, device=device, progress=progress, fused=backend.fused)
    if probe is not None:
        decoder = probe.watch_decoder(decoder)
    budget = _budget(config, spec, dtype, device)
    cache = KvCache(spec.attention, budget.num_blocks, config.block_size, dtype, device, paired=backend.fused)
    sampler = Sampler(spec.vocab_size, files.eos_token_ids)
    timeline = Timeline() if probe is None else probe.timeline
    runner_timeline = Timeline() if overlaps(config, device.type) else timeline
    runner = ModelRunner(decoder, backend(cache), cache, sampler, config.max_sequences, runner_timeline)
    progress("warm-up", 0.0)
    _warm_up(runner, min(config.max_batch_tokens, budget.max_model_len - 1, 64), config.block_size)
    progress("warm-up", 1.0)
    info = _info(config, decoder, dtype, device, backend.name, budget, files.eos_token_ids)
    logger.info(
        "%s: %s in %s on %s, %d blocks of %d tokens (%.2f GiB)",
        info.model,
        info.architecture,
        info.dtype,
        info.device,
        info.num_blocks - 1,
        info.block_size,
        info.kv_bytes / 2**30,
    )
    watched = runner if probe is None else probe.watch_runner(runner)
    return EngineCore(config, info, watched, timeline, runner_timeline)


def _set_threads(threads: int | None) -> None:
    """Computing threads: as asked, else one per core that this process may use (its affinity, not the machine's)."""
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))


def _budget(config: EngineConfig, spec: DecoderSpec, dtype: torch.dtype, device: torch.device) -> KvBudget:
    per_token = sum(2 * shape.kv_heads * shape.head_dim for shape in spec.attention) * dtype.itemsize
    return plan_kv_cache(
        free=free_memory(device),
        kv_memory=config.kv_memory,
        block_bytes=per_token * config.block_size,
        block_size=config.block_size,
        max_model_len=config.max_model_len,
        model_limit=spec.max_positions,
        max_sequences=config.max_sequences,
        default_share=DEFAULT_SHARE_GPU if device.type == "cuda" else DEFAULT_SHARE_CPU,
    )


def _warm_up(runner: ModelRunner, prompt_len: int, block_size: int) -> None:
    """A prefill and a decode step into the padding block, so that the first request pays for no compilation."""
    block_ids = [0] * (-(-(prompt_len + 1) // block_size))
    params = SamplingParams(temperature=0.0)

    def step(tokens: Sequence[int], start: int, init: bool) -> None:
        new = [SlotInit(slot=0, params=params, seed=0, prompt_ids=tokens)] if init else []
        sequence = ScheduledSequence(slot=0, start=start, token_ids=tokens, block_ids=block_ids, sample=True)
        runner.run(StepPlan([sequence], new_slots=new))

    step([0] * prompt_len, 0, init=True)
    step([0], prompt_len, init=False)
    runner.run(StepPlan([], freed_slots=[0]))


def _info(
    config: EngineConfig,
    decoder: Decoder,
    dtype: torch.dtype,
    device: torch.device,
    backend: str,
    budget: KvBudget,
    eos_token_ids: Sequence[int],
) -> EngineInfo:
    return EngineInfo(
        model=config.model,
        architecture=decoder.spec.architecture,
        dtype=str(dtype).removeprefix("torch."),
        device=device.type,
        attention_backend=backend,
        vocab_size=decoder.spec.vocab_size,
        max_model_len=budget.max_model_len,
        block_size=config.block_size,
        num_blocks=budget.num_blocks,
        weight_bytes=decoder.weight_bytes,
        kv_bytes=budget.kv_bytes,
        eos_token_ids=list(eos_token_ids),
        policy=config.policy,
    )
