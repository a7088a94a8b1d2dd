"""Kernels compiled while requests waited are in the engine's statistics."""

from __future__ import annotations

from types import SimpleNamespace

from builders import make_core

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore


def test_its_statistics_tell_of_it() -> None:
    plain, runner = make_core()
    assert plain.stats.kernels_compiled == 0
    compiled = SimpleNamespace(count=0)
    core = EngineCore(EngineConfig(model="simulated"), plain.info, runner, compiled=compiled)
    assert core.stats.kernels_compiled == 0
    compiled.count = 2
    assert core.stats.kernels_compiled == 2
