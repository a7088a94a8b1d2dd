"""Real engines whose device fails when a prompt says so: `build` is the factory, for processes of their own."""

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
"""Tokens with which such a prompt begins."""
TEXTS = {FAULT: "CUDA error: an illegal memory access was encountered", LOST: "CUDA error: GPU is lost"}


class AcceleratorError(RuntimeError):
    """What torch raises for a device that has failed."""


def build(config: EngineConfig, progress: Progress, **given: Any) -> EngineCore:
    """As `build_engine`, in a process that is this engine's alone."""
    plain = OwnThreads.run

    def run(self: OwnThreads, plan: StepPlan) -> Launched:
        for init in plan.new_slots:
            if (text := TEXTS.get(init.prompt_ids[0])) is not None:
                raise AcceleratorError(text)
        return plain(self, plan)

    OwnThreads.run = run  # type: ignore[method-assign]
    return build_engine(config, progress, **given)
