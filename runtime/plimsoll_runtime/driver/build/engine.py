"""Builds an engine in stages: load the model, plan the memory, assemble the parts, warm up."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass

import msgspec

from plimsoll_kernels.compilations import Compilations, watch_triton
from plimsoll_kernels.cpu.crew import leave
from plimsoll_kernels.cpu.library import speed
from plimsoll_kernels.cpu.threads import take_over
from plimsoll_runtime.driver.build.assembly import Assembled, Probe, assemble
from plimsoll_runtime.driver.build.group import build_group, check_group_options
from plimsoll_runtime.driver.build.loader import LoadedModel, load_model
from plimsoll_runtime.driver.build.memory_plan import Budget, check_grant, plan_memory
from plimsoll_runtime.driver.build.model_facts import Model, attention_seconds
from plimsoll_runtime.driver.build.warmup import warm_up
from plimsoll_runtime.driver.build.work import peaks_of, work_of
from plimsoll_runtime.driver.process.handshake import Grant
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore, Runner
from plimsoll_runtime.engine.pipeline import Leave, keep_all
from plimsoll_runtime.engine.protocol.messages import EngineInfo
from plimsoll_runtime.execution.decoder_ops import DecoderOps
from plimsoll_runtime.execution.device.select import check_instructions, choose, cores, take_threads
from plimsoll_runtime.execution.kv.offload.open import check_tier_options
from plimsoll_runtime.execution.memory.system import private_bytes
from plimsoll_runtime.execution.runners.base import OwnThreads
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.parallel.rank import Rank
from plimsoll_runtime.utils.progress import Progress
from plimsoll_runtime.weights.image import Image
from plimsoll_runtime.weights.stored_tensor import dtype_name

logger = logging.getLogger(__name__)

PLANNING = "plan the KV cache"
OF_ALL_RANKS = ("weight_bytes", "kv_bytes", "workspace_bytes", "image_bytes", "snapshot_bytes")
"""Fields of an engine's description that are sums over the ranks of a group."""


@dataclass(frozen=True, slots=True)
class BuiltRunner:
    """A runner that is ready to step, and the other parts of an engine core.

    `prompt_len`, `prompt_seconds`: tokens of the warm-up's prompt, and the seconds of its prefill.
    """

    runner: Runner
    info: EngineInfo
    model: Model
    decoder: Decoder
    assembled: Assembled
    leave: Leave
    compilations: Compilations | None
    prompt_len: int
    prompt_seconds: float


def build_engine(
    config: EngineConfig,
    progress: Progress,
    probe: Probe | None = None,
    *,
    image: Image | None = None,
    grant: Grant | None = None,
) -> EngineCore:
    """Load a model and return an engine that is ready to step; `probe` may observe it.

    An empty `image` is filled with the weights. From a filled image the model wakes, and no weight file is read. With a
    `grant` the engine takes that memory, however much is free. With several ranks, child processes compute
    the steps. Raises SourceError, ModelError, MemoryLimitError, UsageError or DeviceLostError (see `errors`), with what
    to do.
    """
    if config.ranks > 1:
        check_group_options(config, probed=probe is not None, hosted=image is not None or grant is not None)
        return build_group(config, progress)
    built = build_runner(config, progress, probe, image=image, grant=grant)
    assembled = built.assembled
    core = EngineCore(
        config,
        built.info,
        built.runner,
        assembled.engine_timeline,
        assembled.timeline,
        tiers=None if assembled.tiers is None else assembled.tiers.index,
        compiler=assembled.grammars,
        leave=built.leave,
        compiled=built.compilations,
        ops=None if config.step_tracing is None else DecoderOps(built.decoder),
        passes=assembled.forward_pass,
    )
    core.durations.learn(built.prompt_len, built.prompt_seconds)
    return core


def build_runner(
    config: EngineConfig,
    progress: Progress,
    probe: Probe | None = None,
    *,
    image: Image | None = None,
    grant: Grant | None = None,
    rank: Rank | None = None,
) -> BuiltRunner:
    """Load a model, or the part of a `rank`, and return its runner.

    Arguments and errors are those of `build_engine`.
    """
    overhead = private_bytes()
    device = choose(config.device)
    check_tier_options(config, device)
    check_grant(config, grant)
    threads = take_threads(config.threads)
    check_instructions()
    compilations = watch_triton() if device.type == "cuda" else None
    with nullcontext() if compilations is None else compilations.paused():
        loaded = load_model(config, device, image, grant, progress, rank)
        progress(PLANNING, 0.0)
        work, peaks = work_of(loaded, rank), peaks_of(config, loaded, grant, rank, probed=probe is not None)
        budget = plan_memory(config, loaded, grant, rank)
        assembled = assemble(config, loaded, budget, probe, rank)
        prompt_len, prompt_seconds = warm_up(config, loaded, budget, assembled, progress, rank=rank)
    fused = budget.backends[0].fused
    if fused:
        # `speed` takes tens of milliseconds, and only the log needs it.
        if not loaded.woken and logger.isEnabledFor(logging.INFO):
            logger.info("CPU kernels: %s", speed(loaded.model.dtype))
        # This comes last: if building the engine fails, the process keeps its own threads.
        threads = take_over()
    info = _info(config, loaded, budget, assembled, image_bytes=0 if image is None else image.size, overhead=overhead)
    info = msgspec.structs.replace(
        info,
        work=work,
        peak_flops=0 if peaks is None else int(peaks.rate),
        peak_bytes=0 if peaks is None else int(peaks.bandwidth),
    )
    if rank is not None:
        info = msgspec.structs.replace(info, **{name: rank.total(getattr(info, name)) for name in OF_ALL_RANKS})
    own = OwnThreads(assembled.runner, threads)
    if compilations is not None:
        compilations.begin()
    return BuiltRunner(
        own if probe is None else probe.watch_runner(own),
        info,
        loaded.model,
        loaded.decoder,
        assembled,
        leave if fused and threads.kernels >= cores() else keep_all,
        compilations,
        prompt_len,
        prompt_seconds,
    )


def _info(
    config: EngineConfig, loaded: LoadedModel, budget: Budget, assembled: Assembled, *, image_bytes: int, overhead: int
) -> EngineInfo:
    model, kv = loaded.model, budget.kv
    info = EngineInfo(
        model=config.model,
        architecture=model.outline.facts.architecture,
        dtype=dtype_name(model.dtype),
        device=model.device.type,
        attention_backend=assembled.forward_pass.backend_name,
        attention_seconds=attention_seconds(config, model, assembled.forward_pass.backend_name),
        vocab_size=model.outline.facts.vocab_size,
        max_model_len=kv.max_model_len,
        block_size=kv.block_size,
        num_blocks=kv.num_blocks,
        weight_bytes=loaded.weight_bytes,
        kv_bytes=kv.kv_bytes,
        eos_token_ids=list(model.eos_token_ids),
        policy=config.policy,
        max_sequences=config.max_sequences,
        least_blocks=kv.least_blocks,
        most_blocks=kv.most_blocks,
        image_bytes=image_bytes,
        workspace_bytes=budget.workspace,
        overhead_bytes=overhead,
        recurrent=assembled.states.recurrent,
        snapshots=model.snapshots,
        snapshot_bytes=model.snapshots * model.outline.facts.state_bytes(model.dtype.itemsize),
        groups=kv.groups,
        pooling=model.pooling,
        findings=loaded.findings,
    )
    logger.info(
        "%s: %s in %s on %s; weights %.2f GiB, workspace %.2f GiB, %d blocks of %d tokens %.2f GiB",
        info.model,
        info.architecture,
        info.dtype,
        info.device,
        info.weight_bytes / 2**30,
        info.workspace_bytes / 2**30,
        info.num_blocks - 1,
        info.block_size,
        info.kv_bytes / 2**30,
    )
    if info.snapshots:
        logger.info(
            "%s: %d state snapshots of recurrent layers use %.2f GiB of the workspace",
            info.model,
            info.snapshots,
            info.snapshot_bytes / 2**30,
        )
    return info
