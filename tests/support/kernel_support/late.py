"""A device on a CPU that computes asynchronously: copies to the host are visible after a wait for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_support.recorder import Recorder
from torch import Tensor

from plimsoll_runtime.driver.build import assembly, engine, warmup
from plimsoll_runtime.driver.build.assembly import Assembled
from plimsoll_runtime.driver.build.loader import LoadedModel
from plimsoll_runtime.driver.build.memory_plan import Budget
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.execution.forward import GraphForwardPass
from plimsoll_runtime.execution.graphs.capture import CaptureBounds
from plimsoll_runtime.execution.graphs.sampling import SamplingGraphs
from plimsoll_runtime.execution.inputs.step_rows import StepRows
from plimsoll_runtime.execution.runners import gpu
from plimsoll_runtime.parallel.rank import Rank
from plimsoll_runtime.utils.progress import Progress

UNKNOWN = -9


@torch.inference_mode()
def _capturing(
    config: EngineConfig,
    loaded: LoadedModel,
    budget: Budget,
    assembled: Assembled,
    progress: Progress,
    *,
    rank: Rank | None = None,
) -> Any:
    """The warm-up of an engine on a device with graphs."""
    found = warmup.warm_up(config, loaded, budget, assembled, progress, rank=rank)
    assembled.capture_graphs(CaptureBounds(600.0, 2**40), lambda fraction: None)
    return found


class Copies:
    """An event of that device with the copies requested before it; until it is reached, the host has wrong numbers.

    `log`: started passes, sampling by graphs, requested copies, and waits for them.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self._asked: list[tuple[Tensor, Tensor]] = []
        self._under_way: list[tuple[Tensor, Tensor]] = []

    def install(self, patch: pytest.MonkeyPatch, *, graphs: bool = False) -> None:
        """Build engines for such a device from here on; with `graphs`, of all steps that may have some."""
        stages = {**assembly.GPU, "event": lambda: self, "capture": lambda device: Recorder()}
        patch.setattr(assembly, "stages_of", lambda config, model, probe, rank, choice: stages)
        if graphs:
            patch.setattr(engine, "warm_up", _capturing)
            choose = SamplingGraphs.run

            def chosen(own: SamplingGraphs, *args: Any) -> Tensor:
                self.log.append("choose")
                return choose(own, *args)

            patch.setattr(SamplingGraphs, "run", chosen)
        forward = GraphForwardPass.run_rows

        def noted(own: GraphForwardPass, rows: StepRows) -> Tensor:
            self.log.append("forward")
            return forward(own, rows)

        patch.setattr(GraphForwardPass, "run_rows", noted)
        patch.setattr(gpu, "_on_host", self._copy)

    def record(self) -> None:
        self.log.append("copy")
        self._under_way += self._asked
        self._asked.clear()

    @torch.inference_mode()
    def synchronize(self) -> None:
        self.log.append("wait")
        for host, value in self._under_way:
            host.copy_(value)
        self._under_way.clear()

    def _copy(self, value: Tensor) -> Tensor:
        host = torch.full_like(value, UNKNOWN)
        self._asked.append((host, value.clone()))
        return host
