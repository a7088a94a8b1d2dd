"""Series of steps, attention and memory from an engine's description and counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from plimsoll_runtime.api.telemetry.attention_metrics import attention_metrics
from plimsoll_runtime.api.telemetry.memory_metrics import HostMemory, memory_metrics, owners, read_host_memory, shares
from plimsoll_runtime.api.telemetry.step_metrics import step_metrics
from plimsoll_runtime.engine.protocol.messages import EngineInfo, EngineStats, GroupStats
from plimsoll_runtime.engine.work.counter import SEQUENCE_BOUNDS, TOKEN_BOUNDS
from plimsoll_runtime.engine.work.model import Factors, WorkModel
from plimsoll_runtime.engine.work.visible import Visible
from plimsoll_runtime.residency.engines.pressure import Stalls
from plimsoll_runtime.residency.spec import ModelName

KEY = ModelName("team", "m")
WORK = WorkModel((Visible(),), (), {"attention": Factors((0, 0, 0, 0, 0, 0, 4), (0, 8, 0, 0, 0, 16, 0))})
MEMORY = HostMemory(capacity=10_000, left=4_000, stalls=Stalls(some=12.5, full=1.0))


def info(**changes: object) -> EngineInfo:
    values: dict[str, object] = {
        "model": "m",
        "architecture": "Llama",
        "dtype": "float32",
        "device": "cpu",
        "attention_backend": "cudnn+triton",
        "vocab_size": 10,
        "max_model_len": 10,
        "block_size": 4,
        "num_blocks": 11,
        "weight_bytes": 2_000,
        "kv_bytes": 1_100,
        "eos_token_ids": [],
        "workspace_bytes": 300,
        "snapshot_bytes": 100,
        "overhead_bytes": 50,
    }
    return EngineInfo(**(values | changes))  # type: ignore[arg-type]


def stats(**changes: object) -> EngineStats:
    tokens, sequences = [0] * (len(TOKEN_BOUNDS) + 1), [0] * (len(SEQUENCE_BOUNDS) + 1)
    tokens[0], tokens[3], sequences[0] = 2, 1, 3
    values: dict[str, object] = {
        "blocks_total": 10,
        "step_tokens": tuple(tokens),
        "step_sequences": tuple(sequences),
        "amounts": (3, 10, 3, 3, 3, 40, 70),
    }
    return EngineStats(**(values | changes))  # type: ignore[arg-type]


class _Given(Collector):
    def __init__(self, metrics: Iterator[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def samples(metrics: Iterator[Metric]) -> Mapping[str, float]:
    """Return the samples of a scrape by name and labels."""
    registry = CollectorRegistry()
    registry.register(_Given(metrics))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_work_is_the_sum_of_amounts_times_factors() -> None:
    found = samples(step_metrics({KEY: info(work=WORK)}, {KEY: stats()}))
    assert found['plimsoll_step_flops_total{kind="attention",model="m",namespace="team"}'] == 4 * 70
    assert found['plimsoll_step_bytes_total{kind="attention",model="m",namespace="team"}'] == 8 * 10 + 16 * 40


def test_sizes_of_steps() -> None:
    found = samples(step_metrics({KEY: info()}, {KEY: stats()}))
    assert found['plimsoll_step_tokens_bucket{le="1",model="m",namespace="team"}'] == 2
    assert found['plimsoll_step_tokens_bucket{le="4",model="m",namespace="team"}'] == 2
    assert found['plimsoll_step_tokens_bucket{le="8",model="m",namespace="team"}'] == 3
    assert found['plimsoll_step_tokens_bucket{le="+Inf",model="m",namespace="team"}'] == 3
    assert found['plimsoll_step_tokens_sum{model="m",namespace="team"}'] == 10
    assert found['plimsoll_step_sequences_count{model="m",namespace="team"}'] == 3
    assert not [name for name in found if "flops" in name], "the work of Transformers code is unknown"


def test_nothing_before_an_engine_counts() -> None:
    assert samples(step_metrics({}, {})) == {}
    assert samples(step_metrics({KEY: info(work=WORK)}, {KEY: EngineStats()})) == {}


@pytest.mark.parametrize(
    ("replaced", "prompt", "decode", "timed"),
    [("", "cudnn", "triton", True), ("reference", "reference", "reference", False)],
)
def test_attention_backends(replaced: str, prompt: str, decode: str, timed: bool) -> None:
    measured = info(attention_seconds=(0.25, 0.125))
    found = samples(attention_metrics({KEY: measured}, {KEY: stats(attention_backend=replaced)}))
    name, time = "plimsoll_attention_backend_info", "plimsoll_attention_backend_measured_seconds"
    expected = {
        f'{name}{{backend="{prompt}",model="m",namespace="team",phase="prompt"}}': 1.0,
        f'{name}{{backend="{decode}",model="m",namespace="team",phase="decode"}}': 1.0,
    }
    if timed:
        expected[f'{time}{{backend="{prompt}",model="m",namespace="team",phase="prompt"}}'] = 0.25
        expected[f'{time}{{backend="{decode}",model="m",namespace="team",phase="decode"}}'] = 0.125
    assert found == expected


def test_owners_add_up_and_follow_a_resized_cache() -> None:
    found = owners(info(), stats())
    assert found == {"weights": 2_000, "kv": 1_100, "workspace": 200, "snapshots": 100, "process": 50}
    assert sum(found.values()) == 2_000 + 1_100 + 300 + 50
    assert owners(info(), stats(blocks_total=4))["kv"] == 500


@given(capacity=st.integers(0, 100), left=st.integers(0, 120), models=st.integers(0, 150))
def test_shares_add_up_to_the_capacity(capacity: int, left: int, models: int) -> None:
    found = shares(HostMemory(capacity, left, None), models)
    assert sum(found.values()) == capacity
    assert min(found.values()) >= 0


def test_memory_of_a_server() -> None:
    found = samples(memory_metrics(KEY, {KEY: info()}, {KEY: stats()}, lambda: MEMORY))
    assert found['plimsoll_memory_bytes{model="m",namespace="team",owner="weights"}'] == 2_000
    assert found['plimsoll_host_memory_bytes{model="m",namespace="team",use="models"}'] == 3_450
    assert found['plimsoll_host_memory_bytes{model="m",namespace="team",use="other"}'] == 10_000 - 4_000 - 3_450
    assert found['plimsoll_host_memory_bytes{model="m",namespace="team",use="free"}'] == 4_000
    assert found['plimsoll_memory_stalled_ratio{extent="some",model="m",namespace="team"}'] == 0.125


@pytest.mark.parametrize("changes", [{"device": "cuda"}, {"group": GroupStats()}])
def test_a_gpus_memory_and_that_of_other_machines_is_not_taken_for_this_ones(changes: dict[str, object]) -> None:
    own = {name: value for name, value in changes.items() if name == "device"}
    one = {name: value for name, value in changes.items() if name == "group"}
    found = samples(memory_metrics(KEY, {KEY: info(**own)}, {KEY: stats(**one)}, lambda: MEMORY))
    assert not [name for name in found if "host_memory" in name]
    assert [name for name in found if name.startswith("plimsoll_memory_bytes")]


def test_the_machines_memory_can_be_read() -> None:
    found = read_host_memory()
    assert 0 < found.left <= found.capacity
