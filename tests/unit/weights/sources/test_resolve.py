"""Accepted forms of MODEL, and error messages for invalid ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plimsoll_runtime.errors import ModelError, PlimsollError, SourceError
from plimsoll_runtime.weights.files import INDEX, ModelFiles
from plimsoll_runtime.weights.sources.hub import Access
from plimsoll_runtime.weights.sources.resolve import open_folder, resolve

CONFIG = {"architectures": ["LlamaForCausalLM"], "eos_token_id": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "my-model"
    root.mkdir()
    (root / "config.json").write_text(json.dumps(CONFIG))
    (root / "model.safetensors").touch()
    return root


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(model_id: str, revision: str | None, access: Access | None, file: str | None) -> Path:
        with_token = f" with {access.token}" if access else ""
        raise SourceError(f"asked the hub for {model_id} at {revision}{with_token}" + (f", {file}" if file else ""))

    monkeypatch.setattr("plimsoll_runtime.weights.sources.resolve.fetch_snapshot", fetch)


def test_who_only_looks_for_files_needs_no_torch() -> None:
    """Host processes without an engine, and commands that fetch or chat."""
    modules = ("residency.engines.processes", "local.host_sharing", "weights.sources.resolve")
    imports = ", ".join(f"plimsoll_runtime.{module}" for module in modules)
    code = f"import sys, {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def test_a_folder_by_path_and_by_url(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.chdir(folder)
    for model in (str(folder), f"file://{folder}", "~/my-model", "."):
        files = resolve(model)
        assert (files.name, files.format, files.config) == ("my-model", "safetensors", CONFIG)
        assert [w.name for w in files.weights] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("model", "revision", "message"),
    [
        ("s3://bucket/model", None, "has an unknown scheme"),
        ("/no/such/folder", None, "/no/such/folder does not exist: check the path"),
        ("./no-such-folder", None, "does not exist"),
        ("no-such.gguf", None, r"no-such\.gguf does not exist"),
        ("file://no/such", None, "does not exist"),
        ("demo://nothing", None, "no demo model 'nothing'"),
        ("demo://gemma-3-270m", "main", "--revision main needs a Hugging Face id"),
        ("org/model", None, "asked the hub for org/model at None"),
        ("org/model", "v1", "asked the hub for org/model at v1"),
        ("hf://org/model@v2", None, "asked the hub for org/model at v2"),
        ("hf://org/model@v2", "v1", "names the revision v2, but --revision is v1; remove one of them"),
        ("hf://org/model@v2:Q4_K_M", None, "asked the hub for org/model at v2, Q4_K_M"),
        ("org/model:m-Q8_0.gguf", "v1", "asked the hub for org/model at v1, m-Q8_0.gguf"),
        ("hf://org/model@", None, "asked the hub for org/model at None"),
    ],
)
def test_what_is_not_there(model: str, revision: str | None, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        resolve(model, revision)


@pytest.mark.parametrize("model", ["org/model", "hf://org/model"])
def test_a_token_goes_to_the_hub(model: str) -> None:
    with pytest.raises(SourceError, match="asked the hub for org/model at None with hf_x"):
        resolve(model, access=Access("team", "hf_x"))


def test_a_revision_of_a_folder(folder: Path) -> None:
    with pytest.raises(SourceError, match="--revision v1 needs a Hugging Face id"):
        resolve(str(folder), "v1")


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json, so it is not a model folder"):
        resolve(str(tmp_path))


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"PK" + bytes(100))
    with pytest.raises(
        ModelError, match=r"model\.bin is not a readable GGUF file: it does not start with the bytes GGUF"
    ):
        resolve(str(path))


def test_weights_of_another_format(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"has no model\.safetensors; only safetensors and GGUF weights are supported"):
        resolve(str(folder))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000], ids=["empty", "cut", "binary", "deep"])
def test_a_config_that_is_not_json(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json is not JSON"):
        resolve(str(folder))


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", INDEX])
def test_a_json_file_that_no_memory_has_room_for_is_not_read(folder: Path, name: str) -> None:
    with (folder / name).open("wb") as file:
        file.truncate(2**26 + 1)
    with pytest.raises(ModelError, match=rf"{re.escape(name)} has 67,108,865 bytes, more than the limit of 67,108,864"):
        resolve(str(folder))


def test_a_config_that_is_no_object(folder: Path) -> None:
    (folder / "generation_config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"generation_config\.json is not a JSON object"):
        resolve(str(folder))


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (None, "has no weight_map"),
        ({}, "has no weight_map"),
        (["a"], "has no weight_map"),
        ({"a": 3}, "names 3, which is not a file next to it"),
        ({"a": "../other/model.safetensors"}, "names '../other/model.safetensors', which is not a file next to it"),
        ({"a": "/etc/passwd"}, "names '/etc/passwd', which is not a file next to it"),
        ({"a": ".."}, "is not a file next to it|has no"),
        ({"a": "b.safetensors"}, r"has no b\.safetensors"),
    ],
)
def test_an_index_that_is_none(folder: Path, weight_map: Any, message: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError, match=message):
        resolve(str(folder))


def test_the_shards_of_an_index(folder: Path) -> None:
    for name in ("b", "a"):
        (folder / f"{name}.safetensors").touch()
    weight_map = {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert [w.name for w in open_folder(folder, "m").weights] == ["a.safetensors", "b.safetensors"]


def model(config: Any, generation: Any) -> ModelFiles:
    return ModelFiles("m", Path(), "safetensors", {"eos_token_id": config}, (), {"eos_token_id": generation})


def test_ends_of_a_generation() -> None:
    assert model(2, [3, 4]).stated_ends == {"generation_config.json": (3, 4), "config.json": (2,)}
    assert model(2, None).stated_ends == {"config.json": (2,)}
    assert ModelFiles("m", Path(), "safetensors", {}, ()).stated_ends == {}


@pytest.mark.parametrize("value", ["</s>", -1, [2, "x"], True, 2.0, {"a": 1}])
def test_ends_that_are_no_ids(value: Any) -> None:
    with pytest.raises(PlimsollError, match="m: eos_token_id is"):
        _ = model(value, value).stated_ends
