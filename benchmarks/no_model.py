"""Engine information for benchmarks whose runner computes nothing."""

from __future__ import annotations

from typing import Any

from plimsoll_runtime.engine.protocol.messages import EngineInfo


def no_model(**sizes: Any) -> EngineInfo:
    """Return the information of an engine without a model: names are "none", bytes of weights and cache 0. `sizes`: the
    other fields, and replacements for these.
    """
    names = {"model": "none", "architecture": "none", "dtype": "none", "attention_backend": "none"}
    return EngineInfo(**{**names, "device": "cpu", "weight_bytes": 0, "kv_bytes": 0, "eos_token_ids": [2], **sizes})
