"""The third stage of an engine: its parts, each given what it needs of the others."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from plimsoll_kernels.cpu.threads import ThreadShare
from plimsoll_runtime.driver.build.loader import LoadedModel
from plimsoll_runtime.driver.build.memory_plan import Budget
from plimsoll_runtime.driver.build.model_facts import Backends, Model
from plimsoll_runtime.engine.config import EngineConfig, overlaps
from plimsoll_runtime.engine.core import Runner
from plimsoll_runtime.engine.protocol.plan import MOST_FORCED, Launched, StepPlan
from plimsoll_runtime.engine.step_timing import Timeline
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.async_result import DeviceSteps, device_event
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.forward import ForwardPass, GraphsOf
from plimsoll_runtime.execution.graphs.capture import Capture, CudaCapture, FirstOf, StepGraphs
from plimsoll_runtime.execution.graphs.decode import DecodeGraphs, GraphBackend
from plimsoll_runtime.execution.graphs.piecewise import PiecewiseDecoder
from plimsoll_runtime.execution.graphs.sampling import SamplingGraphs
from plimsoll_runtime.execution.inputs.device_state import DeviceState, columns_of
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.open import Tiers, open_tiers
from plimsoll_runtime.execution.kv.states import OwnCaches, StateCache
from plimsoll_runtime.execution.pooling_runner import PoolingRunner
from plimsoll_runtime.execution.runner import ModelRunner
from plimsoll_runtime.execution.sampling.constraints import ConstrainedRows
from plimsoll_runtime.execution.sampling.sampler import Sampler
from plimsoll_runtime.models.decoder import Decoder, TorchDecoder
from plimsoll_runtime.models.program import Facts, Program
from plimsoll_runtime.models.transformers_code.outline import TransformersOutline
from plimsoll_runtime.structured.matcher import Grammars
from plimsoll_runtime.weights.sources.resolve import resolve

logger = logging.getLogger(__name__)


class Probe(Protocol):
    """Looks into an engine that is built to be profiled: it gets each part as it is made, and gives back what is to
    stand in its place (the same, or a wrapper).
    """

    timeline: Timeline

    def watch_decoder(self, decoder: Decoder) -> Decoder:
        """Before anything is computed."""

    def watch_runner(self, runner: Runner) -> Runner:
        """After the warm-up, before the first request."""


class OwnThreads:
    """A runner whose steps compute with its own engine's threads, whoever was loaded into the process since."""

    def __init__(self, runner: Runner, threads: ThreadShare) -> None:
        self._runner = runner
        self._threads = threads

    def run(self, plan: StepPlan) -> Launched:
        """Take the share, then compute the step."""
        self._threads.take()
        return self._runner.run(plan)


@dataclass(frozen=True, slots=True)
class Assembled:
    """What computes steps. The runner has a timeline of its own where steps overlap with their planning."""

    cache: KvCache
    forward_pass: ForwardPass
    runner: Runner
    states: StateCache | OwnCaches | None
    tiers: Tiers | None
    choices: SamplingGraphs | None
    grammars: Grammars
    timeline: Timeline
    runner_timeline: Timeline


def assemble(config: EngineConfig, loaded: LoadedModel, budget: Budget, probe: Probe | None) -> Assembled:
    """Allocate the KV cache and make everything that a step needs. Raises UsageError, SourceError."""
    model, kv = loaded.model, budget.kv
    decoder = loaded.decoder if probe is None else probe.watch_decoder(loaded.decoder)
    cache = KvCache(
        model.outline.facts.attention,
        kv.most_blocks,
        kv.block_size,
        model.dtype,
        model.device,
        taken=kv.num_blocks,
        groups=budget.groups,
        whole=model.outline.facts.whole,
    )
    tiers = _tiers(config, model, cache, budget.backends)
    states = _states(config, model)
    grammars, overlapped = Grammars(), overlaps(config, model.device.type)
    timeline = Timeline() if probe is None else probe.timeline
    runner_timeline = Timeline() if overlapped else timeline
    host = None if tiers is None else tiers.host
    if model.pooling is not None:
        forward_pass = ForwardPass(decoder, cache, budget.backends, None, runner_timeline, states)
        pooling = PoolingRunner(decoder, forward_pass, cache, config.max_sequences, runner_timeline, host)
        return Assembled(cache, forward_pass, pooling, states, tiers, None, grammars, timeline, runner_timeline)
    vocab_size = model.outline.facts.vocab_size
    # Where steps overlap, a step is planned before it is known which tokens the one before it forces.
    constrained = ConstrainedRows(vocab_size, grammars, 0 if overlapped else MOST_FORCED)
    sampler = Sampler(vocab_size, tuple(model.eos_token_ids), constrained)
    capture = _capture(config, cache, probe)
    device = _device(config, cache, kv.max_model_len, decoder, sampler, capture)
    graphs_of: GraphsOf | None = None
    if capture is not None and device is not None:
        graphs_of = partial(_graphs, config, decoder, cache, device.state, capture, states, kv.max_model_len)
    forward_pass = ForwardPass(decoder, cache, budget.backends, graphs_of, runner_timeline, states)
    runner = ModelRunner(decoder, forward_pass, cache, sampler, config.max_sequences, runner_timeline, host, device)
    choices = None if device is None else device.choices
    return Assembled(cache, forward_pass, runner, states, tiers, choices, grammars, timeline, runner_timeline)


def _capture(config: EngineConfig, cache: KvCache, probe: Probe | None) -> Capture | None:
    """What captures graphs, where there may be some: there is CUDA, and nobody looks into each op."""
    if cache.device.type != "cuda" or probe is not None or config.graph_seconds <= 0:
        return None
    return CudaCapture(cache.device)


def _device(
    config: EngineConfig,
    cache: KvCache,
    max_model_len: int,
    decoder: Decoder,
    sampler: Sampler,
    capture: Capture | None,
) -> DeviceSteps | None:
    """What steps need on a device that computes behind the host's back; None for a CPU."""
    copied = device_event(cache.device)
    if copied is None:
        return None
    columns, most = columns_of(max_model_len, cache.block_size), config.max_sequences
    state = DeviceState(most, len(cache.groups), cache.num_blocks, columns, cache.device)
    choices: SamplingGraphs | None = None
    # Hidden states of Transformers' code may have another dtype than the model, and its head may look at numbers.
    if capture is not None and isinstance(decoder.outline, Program):
        choices = SamplingGraphs(decoder, sampler, state, capture, max_rows=most)
    return DeviceSteps(state, copied, choices)


def _graphs(
    config: EngineConfig,
    decoder: Decoder,
    cache: KvCache,
    state: DeviceState,
    capture: Capture,
    states: StateCache | OwnCaches | None,
    max_model_len: int,
    backend: AttentionBackend,
) -> StepGraphs | None:
    """Steps as CUDA graphs: whole decodes where the backend's steps can be captured, and pieces of others where no
    layer keeps states.
    """
    if not isinstance(decoder.outline, Program) or isinstance(states, OwnCaches):
        return None  # Transformers' code may look at numbers in the middle of a step
    kinds: list[StepGraphs] = []
    if isinstance(backend, GraphBackend):
        limits = {"max_sequences": config.max_sequences, "max_model_len": max_model_len}
        kinds.append(DecodeGraphs(decoder, backend, cache, state, capture, **limits, states=states))
    if isinstance(decoder, TorchDecoder) and states is None:
        kinds.append(PiecewiseDecoder(decoder, backend, cache, capture, max_rows=config.max_batch_tokens))
    return FirstOf(kinds) if kinds else None


def _states(config: EngineConfig, model: Model) -> StateCache | OwnCaches | None:
    """What is kept of each sequence that may run beside blocks; None where there is nothing."""
    outline, facts = model.outline, model.outline.facts
    if facts.keeps_only_blocks:
        return None
    if config.prefix_caching and not model.snapshots:
        logger.info("%s %s: every prompt is computed from its first token", facts.architecture, _kept(facts))
    if isinstance(outline, TransformersOutline) and outline.own is not None:
        return OwnCaches(outline.own)
    return StateCache(facts.states, config.max_sequences, model.dtype, model.device, snapshots=model.snapshots)


def _kept(facts: Facts) -> str:
    if facts.whole:
        return "sees prompts from both ends"
    return "has recurrent layers" if facts.states else "keeps a cache of its own for each sequence"


def _tiers(config: EngineConfig, model: Model, cache: KvCache, backends: Backends) -> Tiers | None:
    if config.kv_disk is None and config.kv_host_memory is None:
        return None
    facts = model.outline.facts
    if not facts.keeps_only_blocks or facts.whole:
        raise UsageError(
            f"--kv-disk and --kv-host-memory keep blocks of cached prefixes, which are not enough for a model that "
            f"{_kept(facts)} ({facts.architecture}): leave them away"
        )
    files = model.files or resolve(config.model, config.revision, trust_remote_code=config.trust_remote_code)
    return open_tiers(config, files, cache, backends[0])
