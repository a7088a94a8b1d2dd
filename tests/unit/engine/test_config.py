"""Invalid engine options are refused when the record is made, and the error names the valid ones."""

from typing import Any

import msgspec
import pytest

from plimsoll_runtime.engine.config import BLOCK_SIZES, EngineConfig, overlaps
from plimsoll_runtime.errors import UsageError


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_model_len": 1}, "max_model_len must be at least 2, not 1"),
        ({"max_batch_tokens": 0}, "max_batch_tokens must be at least 1, not 0"),
        ({"max_sequences": -3}, "max_sequences must be at least 1, not -3"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
        ({"check_integrity_every": -1}, "check_integrity_every must be at least 0, not -1"),
        ({"step_timeout": -1.0}, r"step_timeout must be 0 \(never\) or at least 1, not -1"),
        ({"step_timeout": 0.5}, "or at least 1, not 0.5"),
        ({"step_timeout": float("nan")}, "or at least 1, not nan"),
        ({"graph_seconds": -1.0}, "graph_seconds must be at least 0, not -1"),
        ({"block_size": 0}, "block_size must be one of 8, 16, 32, 64, 128, 256, not 0"),
        ({"block_size": 24}, "not 24"),
        ({"device": "gpu"}, "device must be one of auto, cpu, cuda, not gpu"),
    ],
)
def test_what_no_engine_can_have_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        EngineConfig(model="m", **options)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_a_config_crosses_to_the_engines_process(block_size: int) -> None:
    config = EngineConfig(model="m", block_size=block_size, max_model_len=2, threads=1)
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config


@pytest.mark.parametrize(
    ("options", "on_a_cpu", "on_a_gpu"),
    [
        ({}, False, True),
        ({"offline": True}, True, True),
        ({"overlap": True}, True, True),
        ({"overlap": False, "offline": True}, False, False),
    ],
)
def test_where_steps_overlap(options: dict[str, Any], on_a_cpu: bool, on_a_gpu: bool) -> None:
    config = EngineConfig(model="m", **options)
    assert (overlaps(config, "cpu"), overlaps(config, "cuda")) == (on_a_cpu, on_a_gpu)
