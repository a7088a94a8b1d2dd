"""Composes an engine: files, decoder, memory, cache, attention backend, runner, scheduler."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from plimsoll_kernels.cpu.library import speed
from plimsoll_kernels.cpu.threads import ThreadShare, share, take_over
from plimsoll_runtime.driver.own_threads import OwnThreads
from plimsoll_runtime.driver.probe import Probe
from plimsoll_runtime.engine.config import EngineConfig, overlaps
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.messages import EngineInfo
from plimsoll_runtime.engine.params import SamplingParams
from plimsoll_runtime.engine.plan import ScheduledSequence, SlotInit, StepPlan
from plimsoll_runtime.engine.timeline import Timeline
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.attention.catalogue import ENTRIES
from plimsoll_runtime.execution.attention.select import candidates
from plimsoll_runtime.execution.attention.target import Target
from plimsoll_runtime.execution.capture import CudaCapture
from plimsoll_runtime.execution.forward import ForwardPass
from plimsoll_runtime.execution.graphs import GraphBackend, GraphedDecoder
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.memory import (
    DEFAULT_SHARE_CPU,
    DEFAULT_SHARE_GPU,
    KvBudget,
    Room,
    check_weights_fit,
    free_memory,
    plan_kv_cache,
)
from plimsoll_runtime.execution.precision import check_instructions, choose_dtype
from plimsoll_runtime.execution.runner import ModelRunner
from plimsoll_runtime.execution.sampling.sampler import Sampler
from plimsoll_runtime.execution.tiers.open import check_options, open_tiers, staging_beside
from plimsoll_runtime.execution.workspace import LargestStep, on_a_cpu, on_an_accelerator
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.names import weight_bytes
from plimsoll_runtime.models.registry import describe
from plimsoll_runtime.models.spec import DecoderSpec
from plimsoll_runtime.text.ends import end_ids
from plimsoll_runtime.weights.sources import resolve

logger = logging.getLogger(__name__)

Backends = Sequence[type[AttentionBackend]]
"""The one to use, then those that take its place."""

Progress = Callable[[str, float], None]
"""Called with a stage's name and how far it is, from 0 to 1."""


def build_engine(config: EngineConfig, progress: Progress, probe: Probe | None = None) -> EngineCore:
    """Load a model and make it ready to step; `probe` may look into it.

    Raises SourceError, ModelError, MemoryLimitError or UsageError (see `errors`), each with what to do.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_options(config, device)
    threads = _set_threads(config.threads)
    check_instructions()
    files = resolve(config.model, config.revision, progress=progress)
    spec = describe(files.config)
    ours = _our_kernels_serve(config, spec, device)
    dtype = choose_dtype(config.dtype, files.config, device, quantised=files.format == "gguf", ours=ours)
    backends = candidates(config.attention_backend, Target(device, dtype, spec.attention, config.block_size))
    weights = weight_bytes(spec, dtype)
    check_weights_fit(weights, free_memory(device))
    decoder = load_decoder(files, spec, dtype, device=device, progress=progress, fused=backends[0].fused)
    free = free_memory(device)
    workspace, backends = _workspace(config, decoder, backends, device, free)
    budget = _budget(config, spec, dtype, device, Room(weights, free, workspace))
    if probe is not None:
        decoder = probe.watch_decoder(decoder)
    cache = KvCache(spec.attention, budget.num_blocks, config.block_size, dtype, device, paired=backends[0].fused)
    tiers = open_tiers(config, files, cache, backends[0])
    ends = end_ids(files)
    sampler = Sampler(spec.vocab_size, ends)
    timeline = Timeline() if probe is None else probe.timeline
    runner_timeline = Timeline() if overlaps(config, device.type) else timeline
    host, index = (None, None) if tiers is None else (tiers.host, tiers.index)
    graphs_of = None if probe is not None else partial(_graphs, config, decoder, cache, budget.max_model_len)
    forward_pass = ForwardPass(decoder, cache, backends, graphs_of, runner_timeline)
    runner = ModelRunner(decoder, forward_pass, cache, sampler, config.max_sequences, runner_timeline, host)
    progress("warm-up", 0.0)
    prompt_len = min(config.max_batch_tokens, budget.max_model_len - 1, 64)
    prompt_seconds = _warm_up(runner, prompt_len, config.block_size)
    progress("warm-up", 1.0)
    if backends[0].fused:
        if logger.isEnabledFor(logging.INFO):  # some tens of milliseconds that only the log wants
            logger.info("CPU kernels: %s", speed(dtype))
        # Last of all: where there is no engine after all, the process has its threads.
        threads = take_over()
    info = _info(config, decoder, dtype, device, forward_pass.backends[0].name, budget, ends)
    logger.info(
        "%s: %s in %s on %s; weights %.2f GiB, workspace %.2f GiB, %d blocks of %d tokens %.2f GiB",
        info.model,
        info.architecture,
        info.dtype,
        info.device,
        weights / 2**30,
        workspace / 2**30,
        info.num_blocks - 1,
        info.block_size,
        info.kv_bytes / 2**30,
    )
    own = OwnThreads(runner, threads)
    watched = own if probe is None else probe.watch_runner(own)
    core = EngineCore(config, info, watched, timeline, runner_timeline, tiers=index)
    core.durations.learn(prompt_len, prompt_seconds)
    return core


def _graphs(
    config: EngineConfig, decoder: Decoder, cache: KvCache, max_model_len: int, backend: AttentionBackend
) -> GraphedDecoder | None:
    """Decodes as CUDA graphs, where there is CUDA and the backend's steps can be captured."""
    if cache.device.type != "cuda" or not isinstance(backend, GraphBackend):
        return None
    capture = CudaCapture(cache.device)
    return GraphedDecoder(
        decoder, backend, cache, capture, max_sequences=config.max_sequences, max_model_len=max_model_len
    )


def _set_threads(threads: int | None) -> ThreadShare:
    """Computing threads: as asked, else one per core that this process may use (its affinity, not the machine's)."""
    cores = len(os.sched_getaffinity(0))
    if threads is not None and threads > cores:
        logger.warning("%d threads on %d cores take turns, which is slower: give at most %d", threads, cores, cores)
    return share(threads or cores)


def _our_kernels_serve(config: EngineConfig, spec: DecoderSpec, device: torch.device) -> bool:
    """Whether the CPU kernels may take the model in bfloat16."""
    target = Target(device, torch.bfloat16, spec.attention, config.block_size)
    return config.attention_backend in ("auto", "cpu") and ENTRIES["cpu"].why_not(target) is None


def _workspace(
    config: EngineConfig, decoder: Decoder, backends: Backends, device: torch.device, free: int
) -> tuple[int, Backends]:
    """Bytes of the largest step that the config allows, with the longest sequence that memory could hold.

    And the backends but those that have failed at it.
    """
    held = free // _token_bytes(decoder.spec, decoder.dtype)
    longest = min(config.max_model_len or decoder.spec.max_positions, max(1, held))
    step = LargestStep(config.max_batch_tokens, config.max_sequences, longest)
    if device.type == "cpu":
        return on_a_cpu(decoder, step), backends
    return on_an_accelerator(decoder, backends, config.block_size, step)


def _budget(config: EngineConfig, spec: DecoderSpec, dtype: torch.dtype, device: torch.device, room: Room) -> KvBudget:
    block_bytes = _token_bytes(spec, dtype) * config.block_size
    return plan_kv_cache(
        room=room,
        kv_memory=config.kv_memory,
        block_bytes=block_bytes,
        block_size=config.block_size,
        max_model_len=config.max_model_len,
        model_limit=spec.max_positions,
        max_sequences=config.max_sequences,
        default_share=DEFAULT_SHARE_CPU if device.type == "cpu" else DEFAULT_SHARE_GPU,
        staging=staging_beside(config, device, block_bytes),
    )


def _token_bytes(spec: DecoderSpec, dtype: torch.dtype) -> int:
    """Keys and values of one token in all layers."""
    return sum(2 * shape.kv_heads * shape.head_dim for shape in spec.attention) * dtype.itemsize


def _warm_up(runner: ModelRunner, prompt_len: int, block_size: int) -> float:
    """A prefill and a decode step into the padding block, so that the first request pays for no compilation.

    Returns the seconds that the prefill took.
    """
    block_ids = [0] * (-(-(prompt_len + 1) // block_size))
    params = SamplingParams(temperature=0.0)

    def step(tokens: Sequence[int], start: int, init: bool) -> None:
        new = [SlotInit(slot=0, params=params, seed=0, prompt_ids=tokens)] if init else []
        sequence = ScheduledSequence(slot=0, start=start, token_ids=tokens, block_ids=block_ids, sample=True)
        runner.run(StepPlan([sequence], new_slots=new))

    began = time.monotonic()
    step([0] * prompt_len, 0, init=True)
    seconds = time.monotonic() - began
    step([0], prompt_len, init=False)
    runner.run(StepPlan([], freed_slots=[0]))
    return seconds


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
