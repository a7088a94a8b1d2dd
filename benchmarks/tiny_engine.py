"""The engine of benches that count or time what a step takes beside its arithmetic: "tiny" on the CPU kernels."""

from __future__ import annotations

from plimsoll_runtime.driver.build import build_engine
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from serving import models


def tiny_engine(max_sequences: int) -> EngineCore:
    """In this process and with one thread; steps do not overlap."""
    config = EngineConfig(
        model=models.source(models.TINY),
        dtype="bfloat16",
        threads=1,
        kv_memory="256MiB",
        max_model_len=1024,
        max_sequences=max_sequences,
        overlap=False,
    )
    return build_engine(config, lambda stage, fraction: None)
