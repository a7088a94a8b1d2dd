"""The stages of building an engine, and its kinds of graphs by device, backend and layers."""

from __future__ import annotations

import inspect
from functools import partial
from types import SimpleNamespace, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import torch
from kernel_support.recorder import Recorder

from plimsoll_runtime.driver.build import parts
from plimsoll_runtime.driver.build.assembly import (
    CHOOSING,
    CPU,
    GPU,
    GPU_CHOOSING,
    GPU_FIRST,
    GPU_MEMBER,
    GPU_WITHOUT_GRAPHS,
    MEMBER,
    POOLING,
    Assembled,
    Stages,
    run_stages,
    stages_of,
)
from plimsoll_runtime.driver.build.memory_plan import Budget
from plimsoll_runtime.driver.build.model_facts import Backends, Model
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.step_timing import Timeline
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.base import NoAttention
from plimsoll_runtime.execution.graphs.capture import NO_GRAPHS
from plimsoll_runtime.execution.inputs.batch_state import SlotStates
from plimsoll_runtime.execution.kv.states import StateCache
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.models.decoder import Decoder, TorchDecoder
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.parallel.choice import Choice
from plimsoll_runtime.parallel.layout import Layout
from plimsoll_runtime.parallel.rank import Rank

DECODES, PIECES = "DecodeGraphs", "PiecewiseDecoder"


CAPTURE = Recorder()


class Kind:
    """A stand-in for a kind of graphs that records its arguments."""

    def __init__(self, made: list[tuple[str, dict[str, Any]]], name: str, *args: Any, **limits: Any) -> None:
        assert CAPTURE in args, "one for all kinds: they share its memory"
        made.append((name, limits))

    def wanted(self) -> list[Any]:
        return ["some"]


@pytest.mark.parametrize(
    ("backend", "states", "expected"),
    [
        (NoAttention, SlotStates, [DECODES, PIECES]),
        (ReferenceBackend, SlotStates, [PIECES]),
        (NoAttention, StateCache, [DECODES]),
        (ReferenceBackend, StateCache, []),
    ],
)
def test_kinds_of_graphs(backend: Any, states: Any, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, dict[str, Any]]] = []
    for name in (DECODES, PIECES):
        monkeypatch.setattr(parts, name, partial(Kind, made, name))
    decoder: Any = TorchDecoder.__new__(TorchDecoder)
    step_parts = StepParts(decoder, cache=SimpleNamespace(), states=states.__new__(states))  # type: ignore[arg-type]
    config = EngineConfig(model="m", max_sequences=7, max_batch_tokens=99)
    budget: Any = SimpleNamespace(kv=SimpleNamespace(max_model_len=1000))
    state: Any = object()
    graphs = parts.step_graphs(config, budget, step_parts, state, CAPTURE)(backend.__new__(backend))
    assert [name for name, _ in made] == expected
    assert len(graphs.wanted()) == len(expected)
    limits = {
        DECODES: {"max_sequences": 7, "max_model_len": 1000},
        PIECES: {"max_rows": 99, "counts": step_parts.graph_counts},
    }
    assert made == [(name, limits[name]) for name in expected]


def test_without_graphs_no_step_graphs_are_made() -> None:
    """Their buffers would be as large as the batches."""
    made = run_stages({"graphs_of": GPU_WITHOUT_GRAPHS["graphs_of"]}, {})
    assert made["graphs_of"](NoAttention.__new__(NoAttention)) is NO_GRAPHS


def test_steps_and_sampling_are_captured_together() -> None:
    forward_pass: Any = SimpleNamespace(capture_graphs=lambda *args, beside: (args, beside))
    sampling: Any = object()
    captured: Any = parts.graph_capturing(forward_pass, CAPTURE, sampling)("bounds", "progress")  # type: ignore[arg-type]
    assert captured == ((CAPTURE, "bounds", "progress"), sampling)


@pytest.mark.parametrize(
    ("pooling", "device", "seconds", "probed", "ours", "expected"),
    [
        (False, "cuda", 20.0, False, True, GPU),
        (False, "cuda", 0.0, False, True, GPU_WITHOUT_GRAPHS),
        (False, "cuda", 20.0, True, True, GPU_WITHOUT_GRAPHS),
        (False, "cuda", 20.0, False, False, GPU_WITHOUT_GRAPHS),
        (False, "cpu", 20.0, False, True, CPU),
        (False, "cpu", 20.0, False, False, CPU),
        (True, "cpu", 20.0, False, True, POOLING),
        (True, "cuda", 20.0, False, True, POOLING),
    ],
)
def test_stages_by_device(
    pooling: bool, device: str, seconds: float, probed: bool, ours: bool, expected: Stages
) -> None:
    """A probe looks into each op, which a graph hides. The hidden states of a Mamba in Transformers code are float32,
    whatever the model's dtype.
    """
    facts: Any = SimpleNamespace(pooling=object() if pooling else None)
    head: Any = None
    outline: Any = Program(facts, (), head) if ours else SimpleNamespace(facts=facts)
    model: Any = SimpleNamespace(outline=outline, pooling=facts.pooling, device=torch.device(device))
    probe: Any = object() if probed else None
    assert stages_of(EngineConfig(model="m", graph_seconds=seconds), model, probe) is expected


@pytest.mark.parametrize(
    ("device", "options", "first", "member"),
    [
        ("cuda", {}, GPU_FIRST, GPU_MEMBER),
        ("cuda", {"group_backend": "nccl"}, GPU_FIRST, GPU_MEMBER),
        ("cuda", {"group_backend": "gloo"}, GPU_WITHOUT_GRAPHS, MEMBER),
        ("cuda", {"check_collectives": True}, GPU_WITHOUT_GRAPHS, MEMBER),
        ("cuda", {"graph_seconds": 0.0}, GPU_WITHOUT_GRAPHS, MEMBER),
        ("cpu", {}, CPU, MEMBER),
    ],
)
def test_stages_of_ranks(device: str, options: dict[str, Any], first: Stages, member: Stages) -> None:
    facts: Any = SimpleNamespace(pooling=None)
    outline: Any = Program(facts, (), None)  # type: ignore[arg-type]
    model: Any = SimpleNamespace(outline=outline, pooling=None, device=torch.device(device))
    config = EngineConfig(model="m", tensor_parallel=3, **options)
    collectives: Any = object()
    for number, expected in ((0, first), (1, member), (2, member)):
        assert stages_of(config, model, None, Rank(number, Layout(3), 3, collectives, collectives)) is expected


GIVEN = {
    "config": EngineConfig,
    "model": Model,
    "budget": Budget,
    "device": torch.device,
    "backends": Backends,
    "num_slots": int,
    "rank": Rank,
    "choice": Choice,
    "decoder": Decoder,
    "engine_timeline": Timeline,
    "timeline": Timeline,
}


STAGES = (CPU, GPU, GPU_FIRST, GPU_MEMBER, GPU_WITHOUT_GRAPHS, MEMBER, POOLING, CHOOSING, GPU_CHOOSING)


@pytest.mark.parametrize("stages", STAGES)
def test_each_stage_gets_what_it_needs(stages: Stages) -> None:
    """Each part is made before it is needed, has the annotated type, and is needed by another part."""
    kinds, needed = dict[str, Any](GIVEN), set[str]()
    for name, make in dict[str, Any](stages).items():
        hints = get_type_hints(make.__init__ if isinstance(make, type) else make)  # type: ignore[misc]
        for need in inspect.signature(make).parameters:
            assert fits(kinds[need], hints.get(need)), f"{name} needs {need}: {hints[need]}, not {kinds[need]}"
            needed.add(need)
        assert name not in kinds
        kinds[name] = make if isinstance(make, type) else hints.get("return")
    for name, hint in get_type_hints(Assembled).items():
        assert fits(kinds[name], hint), name
        needed.add(name)
    assert kinds.keys() - GIVEN.keys() <= needed


def fits(kind: Any, wanted: Any) -> bool:
    """Return whether a value of a type can be passed for an annotation; None: no annotation."""
    if kind is None or wanted is None or kind == wanted:
        return True
    found, options = get_origin(kind) or kind, get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
    return any(getattr(each, "_is_protocol", False) or issubclass(found, get_origin(each) or each) for each in options)


def test_a_stage_without_what_it_needs() -> None:
    stages: Stages = {"sum": lambda one, two: one + two, "two": lambda: 2}
    with pytest.raises(ValueError, match="the stage 'sum' needs two; add an earlier stage that makes it"):
        run_stages(stages, {"one": 1})
    assert run_stages({name: stages[name] for name in ("two", "sum")}, {"one": 1}) == {"one": 1, "two": 2, "sum": 3}
