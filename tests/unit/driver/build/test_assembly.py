"""Which kinds of graphs an engine has: by its device, its backend and what its layers keep."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_support.recorder import Recorder

from plimsoll_runtime.driver.build import assembly
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.base import NoAttention
from plimsoll_runtime.execution.kv.states import OwnCaches, StateCache
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.program import Program

DECODES, PIECES = "GraphedDecoder", "PiecedDecoder"


class Kind:
    """Graphs that are none: what they were made with."""

    def __init__(self, made: list[tuple[str, dict[str, Any]]], name: str, *args: Any, **limits: Any) -> None:
        self.capture = next(each for each in args if isinstance(each, Recorder))
        made.append((name, limits))


@pytest.mark.parametrize(
    ("backend", "states", "ours", "expected"),
    [
        (NoAttention, None, True, [DECODES, PIECES]),
        (ReferenceBackend, None, True, [PIECES]),
        (NoAttention, StateCache, True, [DECODES]),
        (NoAttention, OwnCaches, True, []),
        (NoAttention, None, False, []),
    ],
)
def test_kinds_of_graphs(
    backend: Any, states: Any, ours: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, dict[str, Any]]] = []
    capture = Recorder()
    for name in (DECODES, PIECES):
        monkeypatch.setattr(assembly, name, partial(Kind, made, name))
    decoder: Any = TorchDecoder.__new__(TorchDecoder)
    decoder.program = Program.__new__(Program) if ours else object()
    cache: Any = SimpleNamespace()
    kept = None if states is None else states.__new__(states)
    config = EngineConfig(model="m", max_sequences=7, max_batch_tokens=99)
    state: Any = object()
    graphs = assembly._graphs(config, decoder, cache, state, capture, kept, 1000, backend.__new__(backend))
    assert [name for name, _ in made] == expected
    assert (graphs is None) == (not expected)
    limits = {DECODES: {"max_sequences": 7, "max_model_len": 1000, "states": kept}, PIECES: {"max_rows": 99}}
    assert made == [(name, limits[name]) for name in expected]
    if graphs is not None:
        assert graphs.capture is capture, "one for all kinds: they share its memory"


@pytest.mark.parametrize(
    ("device", "seconds", "probed", "expected"),
    [
        ("cuda", 20.0, False, True),
        ("cpu", 20.0, False, False),
        ("cuda", 0.0, False, False),
        ("cuda", 20.0, True, False),
    ],
)
def test_where_there_are_graphs(
    device: str, seconds: float, probed: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = Recorder()
    monkeypatch.setattr(assembly, "CudaCapture", lambda device: capture)
    cache: Any = SimpleNamespace(device=torch.device(device))
    probe: Any = object() if probed else None
    found = assembly._capture(EngineConfig(model="m", graph_seconds=seconds), cache, probe)
    assert found is (capture if expected else None)


@pytest.mark.parametrize(
    ("ours", "captures", "expected"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_where_choices_are_graphs(ours: bool, captures: bool, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of Transformers' code: a Mamba's hidden states are float32, whatever the model's dtype."""
    monkeypatch.setattr(assembly, "device_event", lambda device: object())
    decoder: Any = SimpleNamespace(outline=SimpleNamespace(facts=SimpleNamespace(hidden_size=4)), dtype=torch.float32)
    if ours:
        decoder.outline = Program.__new__(Program)
        object.__setattr__(decoder.outline, "facts", SimpleNamespace(hidden_size=4))
    cache: Any = SimpleNamespace(device=torch.device("cpu"), block_size=4, num_blocks=9, groups=[[0]])
    sampler: Any = None
    found = assembly._device(
        EngineConfig(model="m", max_sequences=7), cache, 64, decoder, sampler, Recorder() if captures else None
    )
    assert found is not None
    assert (found.choices is not None) == expected
