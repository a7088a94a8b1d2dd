"""Which kinds of graphs an engine has: by its device, its backend and what its layers keep."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_support.recorder import Recorder

from plimsoll_runtime.driver import wiring
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.execution.attention.nothing import NoAttention
from plimsoll_runtime.execution.attention.reference import ReferenceBackend
from plimsoll_runtime.execution.own_caches import OwnCaches
from plimsoll_runtime.execution.states import StateCache
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.program import Program

DECODES, PIECES = "GraphedDecoder", "PiecedDecoder"


class Kind:
    """Graphs that are none: what they were made with."""

    def __init__(self, made: list[tuple[str, dict[str, Any]]], name: str, *args: Any, **limits: Any) -> None:
        *_, self.capture = args
        made.append((name, limits))


@pytest.mark.parametrize(
    ("backend", "states", "ours", "device", "expected"),
    [
        (NoAttention, None, True, "cuda", [DECODES, PIECES]),
        (ReferenceBackend, None, True, "cuda", [PIECES]),
        (NoAttention, StateCache, True, "cuda", [DECODES]),
        (NoAttention, None, True, "cpu", []),
        (NoAttention, OwnCaches, True, "cuda", []),
        (NoAttention, None, False, "cuda", []),
    ],
)
def test_kinds_of_graphs(
    backend: Any, states: Any, ours: bool, device: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, dict[str, Any]]] = []
    capture = Recorder()
    for name in (DECODES, PIECES):
        monkeypatch.setattr(wiring, name, partial(Kind, made, name))
    monkeypatch.setattr(wiring, "CudaCapture", lambda device: capture)
    decoder: Any = TorchDecoder.__new__(TorchDecoder)
    decoder.program = Program.__new__(Program) if ours else object()
    cache: Any = SimpleNamespace(device=torch.device(device))
    kept = None if states is None else states.__new__(states)
    config = EngineConfig(model="m", max_sequences=7, max_batch_tokens=99)
    graphs = wiring._graphs(config, decoder, cache, kept, 1000, backend.__new__(backend))
    assert [name for name, _ in made] == expected
    assert (graphs is None) == (not expected)
    limits = {DECODES: {"max_sequences": 7, "max_model_len": 1000, "states": kept}, PIECES: {"max_rows": 99}}
    assert made == [(name, limits[name]) for name in expected]
    if graphs is not None:
        assert graphs.capture is capture, "one for all kinds: they share its memory"
