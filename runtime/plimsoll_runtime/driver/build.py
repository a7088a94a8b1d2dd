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
from plimsoll_runtime.driver.footprint import private_bytes
from plimsoll_runtime.driver.grant import Grant
from plimsoll_runtime.driver.loading import load, wake
from plimsoll_runtime.driver.model import Backends, Model, from_files, from_image
from plimsoll_runtime.driver.own_threads import OwnThreads
from plimsoll_runtime.driver.probe import Probe
from plimsoll_runtime.engine.config import EngineConfig, overlaps
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.messages import EngineInfo
from plimsoll_runtime.engine.params import SamplingParams
from plimsoll_runtime.engine.plan import ScheduledSequence, SlotInit, StepPlan
from plimsoll_runtime.engine.timeline import Timeline
from plimsoll_runtime.errors import MemoryLimitError, UsageError
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.capture import CudaCapture
from plimsoll_runtime.execution.forward import ForwardPass
from plimsoll_runtime.execution.graphs import GraphBackend, GraphedDecoder
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.memory import (
    DEFAULT_SHARE_CPU,
    DEFAULT_SHARE_GPU,
    KvBudget,
    Room,
    check_step_fits,
    check_weights_fit,
    free_memory,
    granted_kv_cache,
    no_kv_cache,
    plan_kv_cache,
)
from plimsoll_runtime.execution.precision import check_instructions
from plimsoll_runtime.execution.runner import ModelRunner
from plimsoll_runtime.execution.sampling.sampler import Sampler
from plimsoll_runtime.execution.states import StateCache
from plimsoll_runtime.execution.tiers.open import Tiers, check_options, open_tiers, staging_beside
from plimsoll_runtime.execution.workspace import LargestStep, on_a_cpu, on_an_accelerator
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.sizes import is_share, parse_size
from plimsoll_runtime.weights.image.arena import name_of
from plimsoll_runtime.weights.image.image import Image
from plimsoll_runtime.weights.sources import resolve

logger = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""Called with a stage's name and how far it is, from 0 to 1."""

LOADED_PROMPT, WOKEN_PROMPT = 64, 16
"""Tokens of the prompt that an engine warms up with: one that wakes has somebody waiting for it."""


def build_engine(
    config: EngineConfig,
    progress: Progress,
    probe: Probe | None = None,
    *,
    image: Image | None = None,
    grant: Grant | None = None,
) -> EngineCore:
    """Load a model and make it ready to step; `probe` may look into it.

    An `image` that is empty is filled with its weights; from one that is filled the model wakes, and no file is read.
    With a `grant` the engine takes that, whatever is free.
    Raises SourceError, ModelError, MemoryLimitError or UsageError (see `errors`), each with what to do.
    """
    overhead = private_bytes()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_options(config, device)
    _check_grant(config, grant)
    threads = _set_threads(config.threads)
    check_instructions()
    header = None if image is None else image.header()
    if image is not None and header is not None:
        model = from_image(config, header.facts, device)
        _check_weights(model, _weights_of(model, image), grant)
        decoder = wake(model, image, header)
    else:
        files = resolve(config.model, config.revision, progress=progress)
        model = from_files(config, files, device)
        _check_weights(model, _weights_of(model, image), grant)
        decoder = load(config, model, files, image, progress)
    budget, workspace, backends = _share_out(config, model, decoder, _weights_of(model, image), grant)
    if probe is not None:
        decoder = probe.watch_decoder(decoder)
    cache = KvCache(
        model.outline.facts.attention,
        budget.most_blocks,
        budget.block_size,
        model.dtype,
        device,
        paired=backends[0].fused,
        taken=budget.num_blocks,
    )
    tiers = _tiers(config, model, cache, backends)
    states = _states(config, model)
    sampler = Sampler(model.outline.facts.vocab_size, tuple(model.eos_token_ids))
    timeline = Timeline() if probe is None else probe.timeline
    runner_timeline = Timeline() if overlaps(config, device.type) else timeline
    host, index = (None, None) if tiers is None else (tiers.host, tiers.index)
    graphs_of = None if probe is not None else partial(_graphs, config, decoder, cache, states, budget.max_model_len)
    forward_pass = ForwardPass(decoder, cache, backends, graphs_of, runner_timeline, states)
    runner = ModelRunner(decoder, forward_pass, cache, sampler, config.max_sequences, runner_timeline, host)
    progress("warm-up", 0.0)
    prompt_len = min(config.max_batch_tokens, budget.max_model_len - 1, WOKEN_PROMPT if header else LOADED_PROMPT)
    prompt_seconds = _warm_up(runner, prompt_len, budget.block_size)
    progress("warm-up", 1.0)
    if backends[0].fused:
        if header is None and logger.isEnabledFor(logging.INFO):  # tens of milliseconds that only the log wants
            logger.info("CPU kernels: %s", speed(model.dtype))
        # Last of all: where there is no engine after all, the process has its threads.
        threads = take_over()
    info = EngineInfo(
        model=config.model,
        architecture=model.outline.facts.architecture,
        dtype=name_of(model.dtype),
        device=device.type,
        attention_backend=forward_pass.backends[0].name,
        vocab_size=model.outline.facts.vocab_size,
        max_model_len=budget.max_model_len,
        block_size=budget.block_size,
        num_blocks=budget.num_blocks,
        weight_bytes=decoder.weight_bytes if image is None else _weights_of(model, image),
        kv_bytes=budget.kv_bytes,
        eos_token_ids=list(model.eos_token_ids),
        policy=config.policy,
        max_sequences=config.max_sequences,
        least_blocks=budget.least_blocks,
        most_blocks=budget.most_blocks,
        image_bytes=0 if image is None else image.size,
        workspace_bytes=workspace,
        overhead_bytes=overhead,
        recurrent=states is not None,
    )
    logger.info(
        "%s: %s in %s on %s; weights %.2f GiB, workspace %.2f GiB, %d blocks of %d tokens %.2f GiB",
        info.model,
        info.architecture,
        info.dtype,
        info.device,
        info.weight_bytes / 2**30,
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
    config: EngineConfig,
    decoder: Decoder,
    cache: KvCache,
    states: StateCache | None,
    max_model_len: int,
    backend: AttentionBackend,
) -> GraphedDecoder | None:
    """Decodes as CUDA graphs, where there is CUDA and the backend's steps can be captured."""
    if cache.device.type != "cuda" or not isinstance(backend, GraphBackend):
        return None
    if not isinstance(decoder.outline, Program):  # Transformers' code may look at numbers in the middle of a step
        return None
    capture = CudaCapture(cache.device)
    return GraphedDecoder(
        decoder,
        backend,
        cache,
        capture,
        max_sequences=config.max_sequences,
        max_model_len=max_model_len,
        states=states,
    )


def _states(config: EngineConfig, model: Model) -> StateCache | None:
    """What recurrent layers keep of each sequence that may run; None where there are no such layers."""
    facts = model.outline.facts
    if not facts.states:
        return None
    if config.prefix_caching:
        logger.info("%s has recurrent layers: every prompt is computed from its first token", facts.architecture)
    return StateCache(facts.states, config.max_sequences, model.dtype, model.device)


def _set_threads(threads: int | None) -> ThreadShare:
    """Computing threads: as asked, else one per core that this process may use (its affinity, not the machine's)."""
    cores = len(os.sched_getaffinity(0))
    if threads is not None and threads > cores:
        logger.warning("%d threads on %d cores take turns, which is slower: give at most %d", threads, cores, cores)
    return share(threads or cores)


def _check_grant(config: EngineConfig, grant: Grant | None) -> None:
    """Raises UsageError for options that say themselves what to take, where somebody else says it."""
    if grant is None:
        return
    if config.kv_disk is not None or config.kv_host_memory is not None:
        raise UsageError("--kv-disk and --kv-host-memory take memory that no grant counts: leave them away")
    if config.kv_memory is None:
        return
    if is_share(config.kv_memory):
        raise UsageError(
            f"--kv-memory {config.kv_memory} is a share of what is free, and memory is granted: give bytes"
        )
    wanted = parse_size(config.kv_memory, grant.least)
    if wanted > grant.least:
        raise MemoryLimitError(
            f"--kv-memory {config.kv_memory} is {wanted} bytes, and {grant.least} are granted for good"
        )


def _weights_of(model: Model, image: Image | None) -> int:
    """Bytes of the device's memory that the weights take, or by what is known before a load will take at most."""
    if image is None:
        return model.outline.weight_bytes(model.dtype)
    return model.beside_image + (image.size if model.device.type == "cpu" else 0)


def _check_weights(model: Model, weights: int, grant: Grant | None) -> None:
    """Raises MemoryLimitError where the weights cannot have what they need."""
    if grant is not None:
        grant.check_weights(weights)
    elif model.files is not None:
        check_weights_fit(weights, free_memory(model.device))


def _share_out(
    config: EngineConfig, model: Model, decoder: Decoder, weights: int, grant: Grant | None
) -> tuple[KvBudget, int, Backends]:
    """What the KV cache gets, what the largest step takes, and the backends but those that have failed at it."""
    facts = model.outline.facts
    if not facts.attention:
        return _without_cache(config, model, decoder, weights, grant)
    if grant is None:
        free = free_memory(model.device)
        # The longest sequence that memory could hold.
        held = config.max_model_len or min(facts.max_positions, max(1, free // model.token_bytes))
        workspace, backends = _workspace(config, model, decoder, held)
        return _budget(config, model, Room(weights, free, workspace)), workspace, backends
    budget = granted_kv_cache(
        kv=grant.kv,
        least=grant.least,
        most=grant.most,
        block_bytes=model.token_bytes * config.block_size,
        block_size=config.block_size,
        max_model_len=config.max_model_len,
        model_limit=facts.max_positions,
    )
    workspace, backends = _workspace(config, model, decoder, budget.max_model_len)
    grant.check_workspace(workspace)
    return budget, workspace, backends


def _without_cache(
    config: EngineConfig, model: Model, decoder: Decoder, weights: int, grant: Grant | None
) -> tuple[KvBudget, int, Backends]:
    """The same where no layer attends: what recurrent layers keep is in the workspace."""
    budget = no_kv_cache(config.max_model_len, model.outline.facts.max_positions, config.max_sequences)
    workspace, backends = _workspace(config, model, decoder, budget.max_model_len)
    if grant is not None:
        grant.check_workspace(workspace)
    else:
        check_step_fits(Room(weights, free_memory(model.device), workspace))
    return budget, workspace, backends


def _workspace(config: EngineConfig, model: Model, decoder: Decoder, longest: int) -> tuple[int, Backends]:
    """Bytes of the largest step that the config allows, and the backends but those that have failed at it."""
    step = LargestStep(config.max_batch_tokens, config.max_sequences, longest)
    if model.device.type == "cpu":
        return on_a_cpu(decoder, step), model.backends
    return on_an_accelerator(decoder, model.backends, config.block_size, step)


def _budget(config: EngineConfig, model: Model, room: Room) -> KvBudget:
    block_bytes = model.token_bytes * config.block_size
    return plan_kv_cache(
        room=room,
        kv_memory=config.kv_memory,
        block_bytes=block_bytes,
        block_size=config.block_size,
        max_model_len=config.max_model_len,
        model_limit=model.outline.facts.max_positions,
        max_sequences=config.max_sequences,
        default_share=DEFAULT_SHARE_CPU if model.device.type == "cpu" else DEFAULT_SHARE_GPU,
        staging=staging_beside(config, model.device, block_bytes),
    )


def _tiers(config: EngineConfig, model: Model, cache: KvCache, backends: Backends) -> Tiers | None:
    if config.kv_disk is None and config.kv_host_memory is None:
        return None
    if model.outline.facts.states:
        raise UsageError(
            "--kv-disk and --kv-host-memory keep cached prefixes, and of a model with recurrent layers "
            f"({model.outline.facts.architecture}) there are none: leave them away"
        )
    files = model.files or resolve(config.model, config.revision)
    return open_tiers(config, files, cache, backends[0])


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
