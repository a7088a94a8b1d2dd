"""What an engine says of itself in benches whose runner computes nothing."""

from __future__ import annotations

from typing import Any

from plimsoll_runtime.engine.protocol.messages import EngineInfo


def no_model(**sizes: Any) -> EngineInfo:
    """An engine without a model: `sizes` are what the bench is about, the names say that there is nothing."""
    names = {"model": "none", "architecture": "none", "dtype": "none", "attention_backend": "none"}
    return EngineInfo(**{**names, "device": "cpu", "weight_bytes": 0, "kv_bytes": 0, "eos_token_ids": [2], **sizes})
