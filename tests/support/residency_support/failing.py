"""Real engines whose device fails on certain prompts. `build` is the factory, for separate processes."""

from __future__ import annotations

from typing import Any

from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.plan import Launched, StepPlan
from plimsoll_runtime.execution.runners.base import OwnThreads
from plimsoll_runtime.utils.progress import Progress

FACTORY = "residency_support.failing:build"
FAULT, LOST = 3, 5
"""First tokens of prompts that make the device fail."""
TEXTS = {FAULT: "CUDA error: an illegal memory access was encountered", LOST: "CUDA error: GPU is lost"}


class AcceleratorError(RuntimeError):
    """Stands for the error that torch raises when a device has failed."""


def build(config: EngineConfig, progress: Progress, **given: Any) -> EngineCore:
    """Build an engine like `build_engine`, in a process that runs only this engine."""
    plain = OwnThreads.run

    def run(self: OwnThreads, plan: StepPlan) -> Launched:
        for init in plan.new_slots:
            if (text := TEXTS.get(init.prompt_ids[0])) is not None:
                raise AcceleratorError(text)
        return plain(self, plan)

    OwnThreads.run = run  # type: ignore[method-assign]
    return build_engine(config, progress, **given)
