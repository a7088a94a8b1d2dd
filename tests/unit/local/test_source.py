"""`plimsoll up` converts sources to ModelDeployments that are valid and have valid Kubernetes names."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.local.model import LocalModel, load_models
from plimsoll_runtime.local.source import manifests_of, object_name

VALID = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")
PART = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}", fullmatch=True)


def models_of(*arguments: str) -> list[LocalModel]:
    return load_models(arguments, io.StringIO(), manifests_of(arguments))


@pytest.fixture(autouse=True, scope="module")
def compiled_rules() -> None:
    """Compile the rules before the test, because that changes the recursion limit, which hypothesis reports as an
    error.
    """
    models_of("demo://gemma-3-270m", "hf://org/model@v1:Q8_0")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("demo://gemma-3-270m", "gemma-3-270m"),
        ("hf://Qwen/Qwen3-0.6B", "qwen3-0-6b"),
        ("hf://org/Model_A@refs/pr/7:sub/m-Q4_K_M.gguf", "model-a"),
        ("file:///srv/models/Llama 3.gguf", "llama-3"),
        ("file:///srv/models/Größe/", "groe"),
        ("file:///srv/7b", "model-7b"),
        ("file:///srv/日本", "model"),
    ],
)
def test_names(source: str, name: str) -> None:
    assert object_name(source) == name
    assert VALID.fullmatch(object_name(source))


@given(st.one_of(PART.map("demo://{}".format), st.text(min_size=1).map("file:///srv/{}".format)))
def test_any_name_is_valid(source: str) -> None:
    assert VALID.fullmatch(object_name(source))


@pytest.mark.long
@given(st.lists(st.tuples(PART, PART, st.none() | PART, st.none() | PART), min_size=1, max_size=4, unique=True))
def test_models_of_the_hub_are_taken_as_they_are(parts: list[tuple[str, str, str | None, str | None]]) -> None:
    sources = [
        f"hf://{org}/{name}" + (f"@{revision}" if revision else "") + (f":{file}" if file else "")
        for org, name, revision, file in parts
    ]
    models = models_of(*sources)
    assert [model.source for model in models] == sources
    assert len({model.name for model in models}) == len(sources)


def test_what_is_printed_is_what_runs(tmp_path: Path) -> None:
    folder = tmp_path / 'A model: of "mine" # 1'
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (tmp_path / "Small.Q8_0.GGUF").write_bytes(b"GGUF")
    arguments = [str(folder), str(tmp_path / "Small.Q8_0.GGUF"), "demo://gemma-3-270m"]
    made = manifests_of(arguments)
    assert [model.name for model in models_of(*arguments)] == ["a-model-of-mine-1", "small-q8-0", "gemma-3-270m"]
    kept = [tmp_path / f"{index}.yaml" for index in range(3)]
    for path, text in zip(kept, made.values(), strict=True):
        path.write_text(text)
    again = load_models([str(path) for path in kept], io.StringIO())
    assert [(model.name, model.source) for model in again] == [
        (model.name, model.source) for model in models_of(*arguments)
    ]
    assert again[0].source == f"file://{folder}"


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text("{}")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert models_of("../models/tiny")[0].source == f"file://{tmp_path}/models/tiny"


def test_files_are_no_sources(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("a: 1")
    assert manifests_of(["-", str(tmp_path / "m.yaml"), "none.yaml", "dir/none.yaml"]) == {}


def test_two_sources_of_one_name_get_two(tmp_path: Path) -> None:
    long = "m" * 60
    names = [model.name for model in models_of("hf://a/model", "hf://b/model", f"hf://a/{long}", f"hf://b/{long}")]
    assert names == ["model", "model-2", "m" * 52, "m" * 50 + "-2"]


def test_what_is_no_model_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the folder has no config.json, so it is not a model"):
        manifests_of([str(tmp_path)])
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(UsageError, match=rf"name the file: {tmp_path}/m\.gguf"):
        manifests_of([str(tmp_path)])
    with pytest.raises(UsageError, match="no such file; check the path"):
        manifests_of(["none.gguf"])
    with pytest.raises(UsageError, match=r"for a model of the Hugging Face hub write hf://Qwen/Qwen3-0\.6B:Q8_0"):
        manifests_of(["Qwen/Qwen3-0.6B:Q8_0"])
    with pytest.raises(UsageError, match=r"must be demo://NAME, hf://ORG/NAME"):
        models_of("https://example.com/model")
    with pytest.raises(UsageError, match="is defined twice"):
        models_of("demo://gemma-3-270m", "demo://gemma-3-270m")
