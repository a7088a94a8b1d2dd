"""Every metric that chart, docs, benchmarks, scenarios and examples name is exported by the code, and says its unit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from plimsoll_gateway.discovery.routing_table import TableStore
from plimsoll_gateway.telemetry.metrics import Metrics as GatewayMetrics
from plimsoll_runtime.api.model_directory import OneModel
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.server.state import ServerState
from plimsoll_runtime.api.telemetry.metrics import Metrics
from plimsoll_runtime.engine.protocol.messages import EngineInfo, EngineStats, GroupStats, SnapshotStats, TierStats
from plimsoll_telemetry.process_metrics import BuildCollector
from reference.metrics import COMPONENTS, Metric, metrics_of

REPO = Path(__file__).parents[2]
READERS = ("charts", "docs", "benchmarks", "e2e", "examples")
"""Folders whose files name metrics."""
RECORDS = re.compile("docs/design/|benchmarks/results/")
"""Files that say what was true at a date."""
TEXTS = frozenset({".md", ".yaml", ".yml", ".tpl", ".json", ".py", ".sh"})
NAME = re.compile(r"(?<![\w./-])plimsoll_[a-z][a-z0-9_]*")
PARTS = ("_bucket", "_sum", "_count")
PACKAGES = {
    path.stem for tree in ("operator", "runtime", "kernels", "examples/plugin") for path in (REPO / tree).iterdir()
}
KNOWN = {metric.name: metric for component in COMPONENTS for metric in metrics_of(component)}


def named() -> Iterator[tuple[str, str]]:
    """Yield the path of each file that names a metric, and the name."""
    for folder in READERS:
        for path in sorted((REPO / folder).rglob("*")):
            where = str(path.relative_to(REPO))
            if path.suffix in TEXTS and RECORDS.match(where) is None:
                yield from ((where, name) for name in NAME.findall(path.read_text(encoding="utf-8")))


def is_exported(name: str) -> bool:
    whole = next((name.removesuffix(part) for part in PARTS if name.endswith(part)), name)
    return name in KNOWN or (whole in KNOWN and KNOWN[whole].kind == "histogram")


def test_every_name_is_exported() -> None:
    found = list(named())
    assert {"docs/tasks/keda.md", "docs/tasks/scaling.md", "benchmarks/soak/run.py"} <= {where for where, _ in found}
    unknown = {(where, name) for where, name in found if name not in PACKAGES and not is_exported(name)}
    assert unknown == set()


@pytest.mark.parametrize(
    ("name", "exported"),
    [
        ("plimsoll_queue_seconds", True),
        ("plimsoll_queue_seconds_bucket", True),
        ("plimsoll_engine_steps_total", True),
        ("plimsoll_engine_steps", False),
        ("plimsoll_ready_count", False),
        ("plimsoll_host_device_bytes", False),
    ],
)
def test_a_wrong_name_is_noticed(name: str, exported: bool) -> None:
    assert is_exported(name) is exported


@pytest.mark.parametrize("metric", KNOWN.values(), ids=KNOWN)
def test_names_and_help_texts_say_the_unit(metric: Metric) -> None:
    for unit in ("seconds", "bytes"):
        in_text = unit in metric.text.lower()
        assert not (metric.unit == unit and not in_text), f"the help text does not say {unit}"
        assert not (metric.text.startswith(unit.capitalize()) and metric.unit != unit), (
            f"the name does not end in {unit}"
        )
    if metric.unit in ("tokens", "blocks"):
        assert metric.unit in metric.text.lower()
    if metric.unit == "ratio":
        assert "from 0 to 1" in metric.text
    assert (metric.kind == "counter") is metric.name.endswith("_total")
    assert re.match("[A-Z1]", metric.text)


def registries(folder: Path) -> Iterator[CollectorRegistry]:
    """Yield registries with all series that a gateway, a server and a process have."""
    yield GatewayMetrics(TableStore()).registry
    stats = EngineStats(blocks_total=7, tiers=TierStats(), snapshots=SnapshotStats(), group=GroupStats())
    info = EngineInfo("m", "Llama", "float32", "cpu", "torch", 32, 64, 16, 7, 1 << 20, 1 << 16, [])
    engine: Any = SimpleNamespace(stats=stats, info=info, pid=1)
    state, tokenizer = ServerState(("m",)), None
    state.ready(OneModel(ServedModel(("m",), engine, tokenizer, 0)))  # type: ignore[arg-type]
    yield Metrics(state).registry
    (folder / "cpu.stat").write_text("usage_usec 9\nnr_periods 5\nnr_throttled 2\nthrottled_usec 1500000\n")
    process = CollectorRegistry()
    process.register(BuildCollector("runtime", "1.2", folder / "cpu.stat"))
    yield process


def test_the_reference_has_what_is_exported(tmp_path: Path) -> None:
    """Names, types and, as far as there are samples, labels."""
    seen = set()
    for registry in registries(tmp_path):
        for family in registry.collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            assert (KNOWN[name].kind, KNOWN[name].text) == (family.type, family.documentation)
            for sample in family.samples:
                assert set(sample.labels) - {"le"} == set(KNOWN[name].labels), name
                seen.add(name)
    assert len(seen) > 50
