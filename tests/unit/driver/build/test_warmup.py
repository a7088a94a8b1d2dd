"""The warm-up of an engine: first steps, and graphs within limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from plimsoll_runtime.driver.build.warmup import WOKEN_SECONDS, warm_up
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.plan import StepPlan, StepResult
from plimsoll_runtime.execution.graphs.capture import CaptureBounds, OnProgress

MIB = 2**20


class Parts:
    """The parts of an engine, which record the warm-up's calls."""

    def __init__(
        self, *, woken: bool = False, pooling: object = None, max_model_len: int = 100, device: str = "cuda"
    ) -> None:
        self.did: list[Any] = []
        self.loaded: Any = SimpleNamespace(woken=woken, model=SimpleNamespace(pooling=pooling))
        kv = SimpleNamespace(max_model_len=max_model_len, block_size=16, groups=("all",))
        self.budget: Any = SimpleNamespace(kv=kv, graphs=5 * MIB)
        cache = SimpleNamespace(device=torch.device(device))
        self.backend = object()
        self.assembled: Any = SimpleNamespace(
            runner=self, forward_pass=self, cache=cache, capture_graphs=self.capture_graphs
        )

    def run(self, plan: StepPlan) -> StepResult:
        self.did.append([len(s.token_ids) for s in plan.sequences])
        return StepResult(())

    def capture_graphs(self, bounds: CaptureBounds, progress: OnProgress) -> None:
        assert torch.is_inference_mode_enabled()
        self.did.append(bounds)
        progress(0.5)

    def warm_up(self, **options: Any) -> tuple[int, float]:
        def heard(stage: str, fraction: float) -> None:
            self.did.append((stage, fraction))

        return warm_up(EngineConfig(model="m", **options), self.loaded, self.budget, self.assembled, heard)


def test_steps_and_then_graphs() -> None:
    parts = Parts()
    assert parts.warm_up(graph_seconds=7.5)[0] == 64
    begins, ends = ("warm-up", 0.0), ("warm-up", 1.0)
    assert parts.did == [begins, [64], [1], [], CaptureBounds(7.5, 5 * MIB), ("warm-up", 0.5), ends]


def test_a_cpu_has_no_graphs() -> None:
    parts = Parts(device="cpu")
    parts.warm_up()
    assert parts.did == [("warm-up", 0.0), [64], [1], [], ("warm-up", 1.0)]


def test_who_is_woken_is_waited_for() -> None:
    for wanted, found in ((20.0, WOKEN_SECONDS), (0.5, 0.5)):
        parts = Parts(woken=True)
        assert parts.warm_up(graph_seconds=wanted)[0] == 16
        assert CaptureBounds(found, 5 * MIB) in parts.did


def test_a_model_that_generates_nothing_decodes_nothing() -> None:
    parts = Parts(pooling=object(), max_model_len=31)
    assert parts.warm_up()[0] == 30
    assert parts.did[1:3] == [[30], []]
