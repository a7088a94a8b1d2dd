"""Memory needs by the headers of a model's files equal those of the loaded model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from huggingface_hub import constants
from model_support.gguf_files import write_gguf
from model_support.hub import Hub, serving
from model_support.quantised import FORMS, quantise
from model_support.tiny import make_model, save_model

from plimsoll_runtime.driver.estimate import fit
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import ModelError, SourceError
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.weights.sources import headers
from plimsoll_runtime.weights.sources.headers import fetch_headers
from plimsoll_runtime.weights.sources.resolve import resolve

CONFIG = EngineConfig(model="m", dtype="float32", max_batch_tokens=64, max_sequences=4)
WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "vocab_size": 1000}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A fake hub. The library reads its environment when it is imported, so its constants are patched."""
    with serving(Hub()) as made:
        for name, value in {
            "ENDPOINT": made.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": f"{made.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
        }.items():
            monkeypatch.setattr(constants, name, value)
        yield made


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def by_headers(model: str, folder: Path) -> Any:
    folder.mkdir()
    return fit(resolve(model, fetch=partial(fetch_headers, folder=folder)), CONFIG)


@pytest.mark.parametrize("form", [None, "fp8-blocks"])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_weights_are_what_a_load_keeps(form: str | None, backend: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_model(make_model("Qwen3Config", WIDE), folder)
    if form is not None:
        quantise(folder, FORMS[form], tmp_path / "plain")
    files = resolve(str(folder))
    found = fit(files, EngineConfig(model="m", dtype="float32", attention_backend=backend))
    program = program_of(describe(files.config))
    decoder = load_decoder(files, program, torch.float32, device=torch.device("cpu"), fused=found.packed)
    assert found.weights == decoder.weight_bytes
    assert ("float8_e4m3fn" in found.stored) is (form is not None)
    total = sum(path.stat().st_size for path in files.weights)
    assert 0.95 * total < sum(found.stored.values()) < total


def test_a_reranker_whose_tokens_judge_needs_no_head_of_labels(tmp_path: Path) -> None:
    save_model(make_model("Qwen3Config", WIDE), tmp_path)
    generating = fit(resolve(str(tmp_path)), CONFIG)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "classifier_from_token": ["no", "yes"]}))
    judging = fit(resolve(str(tmp_path)), CONFIG)
    assert judging.stored == generating.stored
    assert judging.weights < generating.weights, "two rows of the vocabulary are enough"


def test_of_a_hub_only_headers_are_fetched(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_model(make_model("Qwen3Config", {**WIDE, "num_hidden_layers": 2}), folder, max_shard_size="3MB")
    hub.files = contents(folder)
    total = sum(len(content) for name, content in hub.files.items() if name.endswith(".safetensors"))
    assert sum(name.endswith(".safetensors") for name in hub.files) > 1
    found = by_headers("hf://org/model", tmp_path / "headers")
    assert found == fit(resolve(str(folder)), CONFIG)
    assert 0 < hub.sent < total / 5
    assert not any("tokenizer" in asked for asked in hub.asked)


def test_headers_longer_than_the_first_fetch(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(make_model("Qwen3Config", WIDE), tmp_path / "model")
    monkeypatch.setattr(headers, "FIRST", 64)
    hub.files = contents(tmp_path / "model")
    assert by_headers("hf://org/model", tmp_path / "headers") == fit(resolve(str(tmp_path / "model")), CONFIG)


def test_a_hub_that_sends_whole_files_is_stopped(hub: Hub, tmp_path: Path) -> None:
    save_model(make_model("Qwen3Config", WIDE), tmp_path / "model")
    hub.files, hub.ranges = contents(tmp_path / "model"), False
    assert by_headers("hf://org/model", tmp_path / "headers") == fit(resolve(str(tmp_path / "model")), CONFIG)


def test_gguf_of_a_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata of any length, in a file of several parts."""
    (tmp_path / "model").mkdir()
    write_gguf(make_model("Qwen2Config", WIDE), tmp_path / "model" / "m.gguf", Kind.Q8_0, parts_of=20)
    monkeypatch.setattr(headers, "FIRST", 32)
    hub.files = contents(tmp_path / "model")
    first = min(hub.files)
    found = by_headers(f"hf://org/model:{first}", tmp_path / "headers")
    assert found == fit(resolve(str(tmp_path / "model" / first)), CONFIG)
    assert next(iter(found.stored)) == "Q8_0"
    assert hub.sent < sum(map(len, hub.files.values())) / 4


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"short", ModelError, "model.safetensors is not a safetensors file"),
        (b"\xff" * 64, ModelError, "model.safetensors is not a safetensors file"),
    ],
)
def test_what_is_no_model(hub: Hub, tmp_path: Path, content: bytes, error: type[Exception], words: str) -> None:
    save_model(make_model("Qwen3Config", WIDE), tmp_path / "model")
    hub.files = {**contents(tmp_path / "model"), "model.safetensors": content}
    with pytest.raises(error, match=words):
        by_headers("hf://org/model", tmp_path / "headers")


def test_a_model_that_there_is_not(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="hf://org/none does not exist"):
        by_headers("hf://org/none", tmp_path / "headers")


def test_tensors_that_the_config_does_not_expect(tmp_path: Path) -> None:
    save_model(make_model("Qwen3Config", WIDE), tmp_path)
    files = resolve(str(tmp_path))
    files.config["num_hidden_layers"] = 5  # type: ignore[index]
    del files.config["layer_types"]  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match=r"the weights lack model\.layers\.3"):
        fit(files, CONFIG)
