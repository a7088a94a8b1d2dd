"""What graphs of steps may take of a device: one answer for predictions, grants and the engine that has them."""

from __future__ import annotations

import torch

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.models.program import Outline, Program
from plimsoll_runtime.utils.sizes import is_share, parse_size


def graph_bytes(config: EngineConfig, outline: Outline, device: torch.device, free: int | None = None) -> int:
    """Bytes, 0 where no step is captured: on a CPU above all.

    `free`: of how many bytes a share is taken; None: memory is granted, or nothing is known of it but the model's
    headers, and a share raises UsageError.
    """
    captured = device.type == "cuda" and outline.facts.pooling is None and isinstance(outline, Program)
    if not captured or not config.graph_seconds:
        return 0
    if free is None and is_share(config.graph_memory):
        raise UsageError(
            f"--graph-memory {config.graph_memory} is a share of what is free, and memory is granted: give bytes"
        )
    return parse_size(config.graph_memory, free or 0)
