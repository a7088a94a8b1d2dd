"""Functions that make parts of engines. The parameters of each function are the names of the parts it needs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import cast

import torch

from plimsoll_runtime.driver.build.memory_plan import Budget
from plimsoll_runtime.driver.build.model_facts import Model
from plimsoll_runtime.engine.config import EngineConfig, overlaps
from plimsoll_runtime.engine.protocol.plan import MOST_FORCED
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.forward import GraphForwardPass, GraphsOf
from plimsoll_runtime.execution.graphs.capture import (
    Capture,
    CaptureBounds,
    CudaCapture,
    FirstOf,
    OnProgress,
    StepGraphs,
)
from plimsoll_runtime.execution.graphs.decode import DecodeGraphs, GraphBackend
from plimsoll_runtime.execution.graphs.piecewise import PiecewiseDecoder
from plimsoll_runtime.execution.graphs.sampling import SamplingGraphs
from plimsoll_runtime.execution.inputs.batch_state import SlotStates
from plimsoll_runtime.execution.inputs.device_state import DeviceState, columns_of
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.open import Tiers, open_tiers
from plimsoll_runtime.execution.kv.states import states_of
from plimsoll_runtime.execution.parts import GraphCounts, StepParts
from plimsoll_runtime.execution.runners.gpu import Event
from plimsoll_runtime.execution.sampling.constraints import ConstrainedRows
from plimsoll_runtime.execution.sampling.sampler import Sampler
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.program import Facts
from plimsoll_runtime.parallel.captures import RankCapture, RankForwardPass
from plimsoll_runtime.parallel.rank import Rank
from plimsoll_runtime.structured.matcher import Grammars
from plimsoll_runtime.weights.sources.resolve import resolve

logger = logging.getLogger(__name__)


def kv_cache(model: Model, budget: Budget) -> KvCache:
    """Allocate the KV cache."""
    facts, kv = model.outline.facts, budget.kv
    return KvCache(
        facts.attention,
        kv.most_blocks,
        kv.block_size,
        model.dtype,
        model.device,
        taken=kv.num_blocks,
        groups=budget.groups,
        whole=facts.whole,
    )


def tiers_below(config: EngineConfig, model: Model, cache: KvCache, budget: Budget) -> Tiers | None:
    """Open the configured KV tiers, host memory and disk; None if there are none. Raises UsageError, SourceError,
    MemoryLimitError.
    """
    if config.kv_disk is None and config.kv_host_memory is None:
        return None
    facts = model.outline.facts
    if not facts.keeps_only_blocks or facts.whole:
        raise UsageError(
            f"--kv-disk and --kv-host-memory store KV blocks only and cannot restore a prefix of a model that "
            f"{_kept(facts)} ({facts.architecture}); omit them"
        )
    files = model.files or resolve(config.model, config.revision, trust_remote_code=config.trust_remote_code)
    return open_tiers(config, files, cache, budget.backends[0])


def graph_counts() -> GraphCounts:
    """Return the counts of replayed passes, all zero."""
    return GraphCounts()


def slot_states(config: EngineConfig, model: Model) -> SlotStates:
    """Allocate the state that slots have besides KV blocks: recurrent states, caches of Transformers code, or none."""
    facts = model.outline.facts
    if not facts.keeps_only_blocks and config.prefix_caching and not model.snapshots:
        logger.info("%s %s: every prompt is computed from its first token", facts.architecture, _kept(facts))
    return states_of(model.outline, config.max_sequences, model.dtype, model.device, snapshots=model.snapshots)


def token_sampler(config: EngineConfig, model: Model, grammars: Grammars) -> Sampler:
    """Return the sampler. If steps overlap, no tokens are forced: a step is planned before the previous one's are
    known.
    """
    most_forced = 0 if overlaps(config, model.device.type) else MOST_FORCED
    vocab_size = model.outline.facts.vocab_size
    return Sampler(vocab_size, tuple(model.eos_token_ids), ConstrainedRows(vocab_size, grammars, most_forced))


def _kept(facts: Facts) -> str:
    if facts.whole:
        return "has bidirectional attention"
    return "has recurrent layers" if facts.states else "keeps its own cache for each sequence"


CaptureGraphs = Callable[[CaptureBounds, OnProgress], None]
"""Captures all graphs of an engine that the bounds allow, during its warm-up."""


def device_state(num_slots: int, cache: KvCache, budget: Budget) -> DeviceState:
    """Return the batch state, with block tables long enough for the longest sequence."""
    columns = columns_of(budget.kv.max_model_len, cache.block_size)
    return DeviceState(num_slots, len(cache.groups), cache.num_blocks, columns, cache.device)


def results_event() -> Event:
    """Return the event that marks a step's results as copied to the host."""
    return cast(Event, torch.cuda.Event())  # type: ignore[no-untyped-call]


def step_graphs(
    config: EngineConfig, budget: Budget, parts: StepParts, state: DeviceState, capture: Capture
) -> GraphsOf:
    """Return the function that makes the step graphs of a backend: of whole decodes if it supports capture, and
    piecewise ones if no layer has recurrent states.
    """
    decoder, cache, states = parts.decoder, parts.cache, parts.states

    def graphs_of(backend: AttentionBackend) -> StepGraphs:
        kinds: list[StepGraphs] = []
        if isinstance(backend, GraphBackend):
            limits = {"max_sequences": config.max_sequences, "max_model_len": budget.kv.max_model_len}
            kinds.append(DecodeGraphs(parts, backend, state, capture, **limits))
        if isinstance(decoder, TorchDecoder) and not states.recurrent:
            rows, counts = config.max_batch_tokens, parts.graph_counts
            kinds.append(PiecewiseDecoder(decoder, backend, cache, capture, max_rows=rows, counts=counts))
        return FirstOf(kinds)

    return graphs_of


def graph_capturing(forward_pass: GraphForwardPass, capture: Capture, graphs: SamplingGraphs) -> CaptureGraphs:
    """Return the function that captures the graphs of steps and of sampling."""
    return partial(forward_pass.capture_graphs, capture, beside=graphs)


def rank_capture(device: torch.device, rank: Rank) -> RankCapture:
    """Return what captures the graphs of a rank."""
    return RankCapture(CudaCapture(device), rank.collectives)


def step_capturing(forward_pass: RankForwardPass, capture: Capture) -> CaptureGraphs:
    """Return the function that captures the graphs of steps."""
    return partial(forward_pass.capture_graphs, capture)
