"""The third stage of building an engine: its parts. Each named stage makes one part from those of earlier stages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

from plimsoll_runtime.driver.build import parts
from plimsoll_runtime.driver.build.loader import LoadedModel
from plimsoll_runtime.driver.build.memory_plan import Budget
from plimsoll_runtime.driver.build.model_facts import Model
from plimsoll_runtime.driver.estimate import has_graphs
from plimsoll_runtime.engine.config import EngineConfig, overlaps
from plimsoll_runtime.engine.core import Runner
from plimsoll_runtime.engine.step_timing import Timeline
from plimsoll_runtime.execution.forward import ForwardPass, GraphForwardPass, GraphsOf
from plimsoll_runtime.execution.graphs.capture import NO_GRAPHS, CudaCapture
from plimsoll_runtime.execution.graphs.sampling import SamplingGraphs
from plimsoll_runtime.execution.inputs.batch_state import SlotStates
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.open import Tiers
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.execution.runners.cpu import CpuRunner
from plimsoll_runtime.execution.runners.gpu import GpuRunner
from plimsoll_runtime.execution.runners.pooling import PoolingRunner
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.parallel.captures import RankForwardPass
from plimsoll_runtime.parallel.choice import Choice
from plimsoll_runtime.parallel.choosing_runner import ChoosingRunner, GraphChoosingRunner
from plimsoll_runtime.parallel.gpu_member import GpuMemberRunner
from plimsoll_runtime.parallel.member import MemberRunner
from plimsoll_runtime.parallel.rank import Rank
from plimsoll_runtime.structured.matcher import Grammars

Stages = Mapping[str, Callable[..., object]]
"""The function or class that makes each part, by the part's name. Its parameters are the names of the parts it
needs."""


def no_capturing() -> parts.CaptureGraphs:
    """Return a function that captures no graphs: every step is launched kernel by kernel."""
    return lambda bounds, progress: None


def no_step_graphs() -> GraphsOf:
    """Return a function that makes no step graphs for any backend, so that none of their buffers is allocated."""
    return lambda backend: NO_GRAPHS


SHARED: Stages = {
    "cache": parts.kv_cache,
    "tiers": parts.tiers_below,
    "host": lambda tiers: None if tiers is None else tiers.host,
    "states": parts.slot_states,
    "graph_counts": parts.graph_counts,
    "parts": StepParts,
    "grammars": Grammars,
}
PLAIN: Stages = {**SHARED, "forward_pass": ForwardPass, "capture_graphs": no_capturing}
POOLING: Stages = {**PLAIN, "runner": PoolingRunner}
"""For a model that generates nothing, on any device."""
CPU: Stages = {**PLAIN, "sampler": parts.token_sampler, "runner": CpuRunner}
GPU: Stages = {
    **SHARED,
    "sampler": parts.token_sampler,
    "state": parts.device_state,
    "event": parts.results_event,
    "capture": CudaCapture,
    "graphs": SamplingGraphs,
    "graphs_of": parts.step_graphs,
    "forward_pass": GraphForwardPass,
    "runner": GpuRunner,
    "capture_graphs": parts.graph_capturing,
}
GPU_WITHOUT_GRAPHS: Stages = {**GPU, "graphs_of": no_step_graphs, "capture_graphs": no_capturing}
MEMBER: Stages = {**PLAIN, "runner": MemberRunner}
"""For the ranks of a parallel group that sample nothing, on a CPU, and on a GPU without graphs."""
CHOOSING: Stages = {**PLAIN, "sampler": parts.token_sampler, "runner": ChoosingRunner}
"""For the ranks that share the output layer and choose tokens together, on a CPU, and on a GPU without graphs."""
GPU_FIRST: Stages = {**GPU, "capture": parts.rank_capture, "forward_pass": RankForwardPass}
"""For rank 0 of a parallel group, which samples, on a GPU with graphs."""
GPU_RANK: Stages = {
    **SHARED,
    "state": parts.device_state,
    "capture": parts.rank_capture,
    "graphs_of": parts.step_graphs,
    "forward_pass": RankForwardPass,
    "capture_graphs": parts.step_capturing,
}
GPU_MEMBER: Stages = {**GPU_RANK, "event": parts.results_event, "runner": GpuMemberRunner}
"""For the other ranks, which sample nothing."""
GPU_CHOOSING: Stages = {**GPU_RANK, "sampler": parts.token_sampler, "runner": GraphChoosingRunner}
"""For the ranks that choose tokens together, on a GPU with graphs."""


class Probe(Protocol):
    """Observes an engine that is built for profiling. Each method gets a part and returns the part to use: the same
    one, or a wrapper.
    """

    timeline: Timeline

    def watch_decoder(self, decoder: Decoder) -> Decoder:
        """Called before anything is computed."""

    def watch_runner(self, runner: Runner) -> Runner:
        """Called after the warm-up, before the first request."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """The parts of an engine that its builder and its warm-up use.

    `timeline` belongs to the thread that runs steps. It differs from `engine_timeline` if steps overlap with planning.
    """

    cache: KvCache
    forward_pass: ForwardPass
    runner: Runner
    states: SlotStates
    tiers: Tiers | None
    capture_graphs: parts.CaptureGraphs
    grammars: Grammars
    choice: Choice | None
    engine_timeline: Timeline
    timeline: Timeline


def no_sampler() -> None:
    """Return no sampler, for a rank that chooses tokens without knowing all logits."""


def stages_of(
    config: EngineConfig, model: Model, probe: Probe | None, rank: Rank | None = None, choice: Choice | None = None
) -> Stages:
    """Return the stages for a model, or for a `rank`'s part of one. `choice`: that of tokens, if the rank joins one.

    With a probe there are no CUDA graphs, because a graph hides its ops.
    """
    captures = probe is None and has_graphs(config, model.outline, model.device)
    if choice is not None:
        found = GPU_CHOOSING if captures else CHOOSING
        return found if choice.samples else {**found, "sampler": no_sampler}
    if rank is not None and rank.number > 0:
        return GPU_MEMBER if captures else MEMBER
    if model.pooling is not None:
        return POOLING
    if model.device.type == "cpu":
        return CPU
    if not captures:
        return GPU_WITHOUT_GRAPHS
    return GPU if rank is None else GPU_FIRST


def run_stages(stages: Stages, given: Mapping[str, object]) -> dict[str, Any]:
    """Run stages in order. Return all parts by name, including those `given`.

    Raises ValueError for a stage that needs a part which is neither given nor made by an earlier stage.
    """
    made = dict(given)
    for name, make in stages.items():
        needs = inspect.signature(make).parameters
        if missing := [need for need in needs if need not in made]:
            raise ValueError(f"the stage {name!r} needs {', '.join(missing)}; add an earlier stage that makes it")
        made[name] = make(**{need: made[need] for need in needs})
    return made


def assemble(
    config: EngineConfig, loaded: LoadedModel, budget: Budget, probe: Probe | None, rank: Rank | None = None
) -> Assembled:
    """Allocate the KV cache and make everything that a step needs. Raises UsageError, SourceError."""
    engine_timeline = Timeline() if probe is None else probe.timeline
    choice = None if rank is None else rank.choice(loaded.model.outline)
    made = run_stages(
        stages_of(config, loaded.model, probe, rank, choice),
        {
            "config": config,
            "model": loaded.model,
            "budget": budget,
            "device": loaded.model.device,
            "backends": budget.backends,
            "num_slots": config.max_sequences,
            "rank": rank,
            "choice": choice,
            "decoder": loaded.decoder if probe is None else probe.watch_decoder(loaded.decoder),
            "engine_timeline": engine_timeline,
            "timeline": Timeline() if overlaps(config, loaded.model.device.type) else engine_timeline,
        },
    )
    return Assembled(**{field.name: made[field.name] for field in fields(Assembled)})
