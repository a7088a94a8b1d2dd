"""Memory for CUDA graphs: equal in an engine, in its estimate and in its grant."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from model_support.tiny import make_model, save_model

from plimsoll_runtime.driver.build import memory_plan
from plimsoll_runtime.driver.estimate import fit, graph_bytes, measure
from plimsoll_runtime.driver.process.handshake import Grant
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.weights.sources.resolve import resolve

MIB = 2**20
GPU, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(make_model("LlamaConfig", {"head_dim": 16}), tmp_path)
    return tmp_path


def config_of(folder: Path, **options: Any) -> EngineConfig:
    """Return a config with a backend of torch ops, which works on any device."""
    return EngineConfig(
        model=str(folder), dtype="float32", attention_backend="sdpa", max_model_len=64, max_sequences=4, **options
    )


@pytest.mark.parametrize(
    ("device", "options", "free", "expected"),
    [
        (GPU, {}, 1000 * MIB, 512 * MIB),
        (GPU, {}, None, 512 * MIB),
        (GPU, {"graph_memory": "10%"}, 1000 * MIB, 100 * MIB),
        (GPU, {"graph_seconds": 0.0}, None, 0),
        (CPU, {}, 1000 * MIB, 0),
        (CPU, {"graph_memory": "10%"}, None, 0),
    ],
)
def test_it_is_kept_where_there_are_graphs(
    device: torch.device, options: dict[str, Any], free: int | None, expected: int, folder: Path
) -> None:
    outline = program_of(describe(resolve(str(folder)).config))
    assert graph_bytes(config_of(folder, **options), outline, device, free) == expected


def test_what_gives_vectors_or_is_not_our_program_has_none(folder: Path) -> None:
    vectors: Any = SimpleNamespace(facts=SimpleNamespace(pooling=object()))
    others: Any = SimpleNamespace(facts=SimpleNamespace(pooling=None))
    assert [graph_bytes(config_of(folder), outline, GPU) for outline in (vectors, others)] == [0, 0]


def test_a_share_is_of_what_nobody_has_granted(folder: Path) -> None:
    outline = program_of(describe(resolve(str(folder)).config))
    with pytest.raises(
        UsageError, match=r"--graph-memory 10% is a share of free memory, but this engine gets granted memory"
    ):
        graph_bytes(config_of(folder, graph_memory="10%"), outline, GPU)


def test_what_a_gpus_engine_needs_has_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimates by headers include graphs on a GPU, and add nothing on a CPU."""
    files, config = resolve(str(folder)), config_of(folder, graph_memory="100MiB")
    needs, found = measure(config), fit(files, config)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    needed, fitted = measure(config), fit(files, config)
    assert needed.workspace - needs.workspace == 100 * MIB
    assert (found.graphs, fitted.graphs) == (0, 100 * MIB)
    assert fitted.beside_cache - found.beside_cache == 100 * MIB
    for config in (config_of(folder, graph_seconds=0.0), config_of(folder)):
        expected = graph_bytes(config, program_of(describe(files.config)), GPU)
        assert measure(config).workspace - needs.workspace == fit(files, config).graphs == expected


def test_an_engine_captures_within_the_grant_that_its_headers_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a step is smaller than predicted, graphs get their full memory; a larger step takes some of it."""
    config = config_of(folder, graph_memory="100MiB")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    needs = measure(config)
    outline = program_of(describe(resolve(str(folder)).config))
    model: Any = SimpleNamespace(outline=outline, device=GPU)
    grant = Grant(weights=needs.private, workspace=needs.workspace, kv=needs.kv_least)
    step = needs.workspace - 100 * MIB
    for measured, graphs in ((step // 2, 100 * MIB), (step, 100 * MIB), (step + 40 * MIB, 60 * MIB)):
        taken = memory_plan._granted_graphs(config, model, grant, measured)
        assert taken == graphs
        assert measured + taken <= grant.workspace
    small = msgspec.structs.replace(grant, workspace=step)
    assert memory_plan._granted_graphs(config, model, small, step) == 0
