"""A tiny model on disk, and probes that take no time."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_support.tiny import make_model, save_model
from profiling_support.steps import quicken_probes


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of three layers in float32."""
    folder = tmp_path_factory.mktemp("tiny")
    save_model(make_model("LlamaConfig", {}), folder)
    return folder


@pytest.fixture(autouse=True)
def _quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken_probes(monkeypatch)
