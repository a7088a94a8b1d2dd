"""Folders with an adapter are rejected, with and without a model."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.adapters import ADAPTER_FILES
from plimsoll_runtime.weights.sources.resolve import resolve, resolve_config

BASE = "acme/base-7b"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a model folder that is valid without an adapter."""
    root = tmp_path / "tuned"
    root.mkdir()
    (root / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (root / "model.safetensors").touch()
    resolve(str(root))
    return root


def with_adapter(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).touch()
    if ADAPTER_FILES[0] in names:
        (folder / ADAPTER_FILES[0]).write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": BASE}))
    return folder


@pytest.mark.parametrize("name", ADAPTER_FILES)
def test_any_file_of_an_adapter_next_to_a_model(name: str, folder: Path) -> None:
    with_adapter(folder, name)
    message = (
        rf"tuned has an adapter next to the model \({name}\), and Plimsoll does not apply adapters.*merge_and_unload"
    )
    with pytest.raises(ModelError, match=message) as refusal:
        resolve(str(folder))
    assert "a copy of the folder without these files" in str(refusal.value)


@pytest.mark.parametrize("without", ["config.json", "model.safetensors"])
def test_an_adapter_alone_names_its_base_and_what_to_do(without: str, folder: Path) -> None:
    (folder / without).unlink()
    with_adapter(folder, *ADAPTER_FILES[:2])
    message = rf"tuned is an adapter \(.*\) without its base model, which is {BASE}; .*merge_and_unload"
    with pytest.raises(ModelError, match=message):
        resolve(str(folder))


@pytest.mark.parametrize("content", ["{", "[]", '{"base_model_name_or_path": 3}'])
def test_a_damaged_adapter_alone_is_refused_without_a_base(content: str, folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / ADAPTER_FILES[0]).write_text(content)
    with pytest.raises(ModelError, match="without its base model; merge it"):
        resolve(str(folder))


def test_the_config_of_a_hubs_adapter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`plimsoll models show` fetches no weights, so it does not know whether the model has any."""
    asked: list[list[str]] = []

    def fetch(model_id: str, revision: str | None, patterns: list[str]) -> Path:
        asked.append(patterns)
        return folder

    monkeypatch.setattr("plimsoll_runtime.weights.sources.resolve.fetch_snapshot", fetch)
    (folder / "model.safetensors").unlink()
    resolve_config("hf://acme/tuned")
    with_adapter(folder, ADAPTER_FILES[0])
    with pytest.raises(ModelError, match="acme/tuned has an adapter next to the model"):
        resolve_config("hf://acme/tuned")
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match="acme/tuned is an adapter"):
        resolve_config("hf://acme/tuned")
    assert all(ADAPTER_FILES[0] in patterns for patterns in asked)


def test_an_adapter_in_a_gguf_file(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "lora.gguf", "llama")
    writer.add_type("adapter")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"lora\.gguf is an adapter.*llama-export-lora"):
        resolve(str(tmp_path / "lora.gguf"))
