"""Parts of engines on a GPU: batch state and CUDA graphs. Parameters are the names of parts, as in `parts`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import torch

from plimsoll_runtime.driver.build.memory_plan import Budget
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.forward import GraphForwardPass, GraphsOf
from plimsoll_runtime.execution.graphs.capture import (
    NO_GRAPHS,
    Capture,
    CaptureBounds,
    FirstOf,
    OnProgress,
    StepGraphs,
)
from plimsoll_runtime.execution.graphs.decode import DecodeGraphs, GraphBackend
from plimsoll_runtime.execution.graphs.piecewise import PiecewiseDecoder
from plimsoll_runtime.execution.graphs.sampling import SamplingGraphs
from plimsoll_runtime.execution.inputs.device_state import DeviceState, columns_of
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.states import OwnCaches
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.execution.runners.gpu import Event
from plimsoll_runtime.models.decoder import Decoder, TorchDecoder
from plimsoll_runtime.models.program import Program

CaptureGraphs = Callable[[CaptureBounds, OnProgress], None]
"""Captures all graphs of an engine that the bounds allow, at its warm-up."""


def device_state(num_slots: int, cache: KvCache, budget: Budget) -> DeviceState:
    """Batch state, whose block tables have room for the longest sequence."""
    columns = columns_of(budget.kv.max_model_len, cache.block_size)
    return DeviceState(num_slots, len(cache.groups), cache.num_blocks, columns, cache.device)


def results_event() -> Event:
    """The event behind which a step's results are on the host."""
    return cast(Event, torch.cuda.Event())  # type: ignore[no-untyped-call]


def step_graphs(
    config: EngineConfig, budget: Budget, parts: StepParts, state: DeviceState, capture: Capture
) -> GraphsOf:
    """Graphs of whole decodes if the steps of a backend can be captured, and of pieces of other steps if no layer keeps
    states. Transformers code has neither: it may look at numbers in the middle of a step.
    """
    decoder, cache, states = parts.decoder, parts.cache, parts.states

    def graphs_of(backend: AttentionBackend) -> StepGraphs:
        if not isinstance(decoder.outline, Program) or isinstance(states, OwnCaches):
            return NO_GRAPHS
        kinds: list[StepGraphs] = []
        if isinstance(backend, GraphBackend):
            limits = {"max_sequences": config.max_sequences, "max_model_len": budget.kv.max_model_len}
            kinds.append(DecodeGraphs(parts, backend, state, capture, **limits))
        if isinstance(decoder, TorchDecoder) and not states.recurrent:
            kinds.append(PiecewiseDecoder(decoder, backend, cache, capture, max_rows=config.max_batch_tokens))
        return FirstOf(kinds)

    return graphs_of


def graph_capturing(
    decoder: Decoder, forward_pass: GraphForwardPass, capture: Capture, graphs: SamplingGraphs
) -> CaptureGraphs:
    """Captures the graphs of steps and of sampling. Transformers code has none of sampling: its hidden states may have
    another dtype than the model, and its head may look at numbers.
    """
    sampling = graphs if isinstance(decoder.outline, Program) else NO_GRAPHS
    return partial(forward_pass.capture_graphs, capture, beside=sampling)
