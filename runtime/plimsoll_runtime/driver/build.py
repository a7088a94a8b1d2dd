"""Builds an engine in stages: what is loaded, what memory it gets, its parts, and a first step."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import torch

from plimsoll_kernels.cpu.crew import leave
from plimsoll_kernels.cpu.library import speed
from plimsoll_kernels.cpu.threads import take_over
from plimsoll_runtime.driver.budget import Budget, check_grant, share_out
from plimsoll_runtime.driver.footprint import private_bytes
from plimsoll_runtime.driver.grant import Grant
from plimsoll_runtime.driver.loading import Loaded, load_model
from plimsoll_runtime.driver.threads import cores, take_threads
from plimsoll_runtime.driver.wiring import OwnThreads, Probe, Wired, wire
from plimsoll_runtime.engine.block_pool import PADDING_BLOCK
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore, Runner
from plimsoll_runtime.engine.messages import EngineInfo
from plimsoll_runtime.engine.params import SamplingParams
from plimsoll_runtime.engine.pipeline import keep_all
from plimsoll_runtime.engine.plan import ScheduledSequence, SlotInit, StepPlan, TableChange
from plimsoll_runtime.execution.memory import KvBudget
from plimsoll_runtime.execution.precision import check_instructions
from plimsoll_runtime.execution.tiers.open import check_options
from plimsoll_runtime.progress import Progress
from plimsoll_runtime.weights.image.arena import name_of
from plimsoll_runtime.weights.image.image import Image

logger = logging.getLogger(__name__)

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
    check_grant(config, grant)
    threads = take_threads(config.threads)
    check_instructions()
    loaded = load_model(config, device, image, grant, progress)
    budget = share_out(config, loaded, grant)
    wired = wire(config, loaded, budget, probe)
    progress("warm-up", 0.0)
    warm_up = WOKEN_PROMPT if loaded.woken else LOADED_PROMPT
    prompt_len = max(1, min(config.max_batch_tokens, budget.kv.max_model_len - 1, warm_up))
    prompt_seconds = _warm_up(wired.runner, prompt_len, budget.kv, decodes=loaded.model.pooling is None)
    progress("warm-up", 1.0)
    fused = budget.backends[0].fused
    if fused:
        if not loaded.woken and logger.isEnabledFor(logging.INFO):  # tens of milliseconds that only the log wants
            logger.info("CPU kernels: %s", speed(loaded.model.dtype))
        # Last of all: where there is no engine after all, the process has its threads.
        threads = take_over()
    info = _info(config, loaded, budget, wired, image_bytes=0 if image is None else image.size, overhead=overhead)
    own = OwnThreads(wired.runner, threads)
    runner = own if probe is None else probe.watch_runner(own)
    index = None if wired.tiers is None else wired.tiers.index
    core = EngineCore(
        config,
        info,
        runner,
        wired.timeline,
        wired.runner_timeline,
        tiers=index,
        compiler=wired.grammars,
        leave=leave if fused and threads.kernels >= cores() else keep_all,
    )
    core.durations.learn(prompt_len, prompt_seconds)
    return core


def _info(
    config: EngineConfig, loaded: Loaded, budget: Budget, wired: Wired, *, image_bytes: int, overhead: int
) -> EngineInfo:
    model, kv = loaded.model, budget.kv
    info = EngineInfo(
        model=config.model,
        architecture=model.outline.facts.architecture,
        dtype=name_of(model.dtype),
        device=model.device.type,
        attention_backend=wired.forward_pass.backends[0].name,
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
        recurrent=wired.states is not None,
        snapshots=model.snapshots,
        snapshot_bytes=model.snapshots * model.outline.facts.state_bytes(model.dtype.itemsize),
        groups=kv.groups,
        pooling=model.pooling,
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
            "%s: %d snapshots of its recurrent states, %.2f GiB of the workspace",
            info.model,
            info.snapshots,
            info.snapshot_bytes / 2**30,
        )
    return info


def _warm_up(runner: Runner, prompt_len: int, kv: KvBudget, *, decodes: bool) -> float:
    """A prefill and, of what generates, a decode step into the padding block, so that the first request pays for no
    compilation.

    Returns the seconds that the prefill took.
    """
    blocks = [PADDING_BLOCK] * -(-(prompt_len + 1) // kv.block_size)
    tables = [TableChange(group, 0, 0, blocks) for group in range(len(kv.groups))]
    params = SamplingParams(temperature=0.0)

    def step(tokens: Sequence[int], start: int, init: bool) -> None:
        new = [SlotInit(slot=0, params=params, seed=0, prompt_ids=tokens)] if init else []
        sequence = ScheduledSequence(slot=0, start=start, token_ids=tokens, changes=tables if init else (), sample=True)
        runner.run(StepPlan([sequence], new_slots=new)).result()

    began = time.monotonic()
    step([0] * prompt_len, 0, init=True)
    seconds = time.monotonic() - began
    if decodes:
        step([0], prompt_len, init=False)
    runner.run(StepPlan([], freed_slots=[0])).result()
    return seconds
