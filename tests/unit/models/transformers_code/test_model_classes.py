"""A model's own code: messages if it may not run, or cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from model_support.own_code import CONFIG, write_code
from model_support.tiny import COMMON

from plimsoll_runtime.errors import ModelError, UsageError
from plimsoll_runtime.models.transformers_code.outline import transformers_outline
from plimsoll_runtime.residency.spec import ModelSpec, check_spec


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_code(tmp_path, monkeypatch)
    return tmp_path


def config(**values: Any) -> dict[str, Any]:
    return {**COMMON, **CONFIG, **values}


def test_it_is_not_run_unasked(folder: Path) -> None:
    (folder / "modeling_buoy.py").write_text("raise SystemExit")
    with pytest.raises(
        ModelError, match=r"BuoyForCausalLM is not supported: neither Plimsoll.*runs only with --trust-remote"
    ):
        transformers_outline(config())


def test_it_is_run_where_it_is_trusted(folder: Path) -> None:
    outline = transformers_outline(config(), folder)
    assert outline.facts.architecture == "BuoyForCausalLM"
    assert outline.facts.attention[0].heads == COMMON["num_attention_heads"]
    assert outline.code == folder


def test_the_classes_record_is_taken_where_none_is_named(folder: Path) -> None:
    named = {"AutoModelForCausalLM": "modeling_buoy.BuoyForCausalLM"}
    assert transformers_outline(config(auto_map=named), folder).facts.vocab_size == COMMON["vocab_size"]


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        (
            "org/other--modeling_buoy.BuoyForCausalLM",
            r"in another repository \(org/other\); copy it next to the weights",
        ),
        ("modeling_buoy.Missing", r"cannot be imported \(modeling_buoy.Missing\): AttributeError"),
        ("modeling_none.BuoyForCausalLM", r"cannot be imported \(modeling_none.BuoyForCausalLM\): OSError"),
        ("configuration_buoy.BuoyConfig", "configuration_buoy.BuoyConfig that is not a PreTrainedModel"),
        ("../modeling_buoy.py", "must be FILE.CLASS"),
        ("broken.Model", r"cannot be imported \(broken.Model\): ZeroDivisionError"),
        ("needy.Model", "ImportError: .*surely_not_installed"),
    ],
)
def test_what_cannot_be_had_is_named(folder: Path, named: str, reason: str) -> None:
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "needy.py").write_text("import surely_not_installed\n")
    with pytest.raises(ModelError, match=f"BuoyForCausalLM is not supported.*{reason}"):
        transformers_outline(config(auto_map={"AutoModelForCausalLM": named}), folder)


@pytest.mark.parametrize(
    "auto_map", [None, [], "x", {"AutoModel": "modeling_buoy.BuoyModel"}, {"AutoModelForCausalLM": 1}]
)
def test_a_model_that_ships_no_class_that_generates_text(folder: Path, auto_map: Any) -> None:
    with pytest.raises(ModelError, match=r"supports the model_type buoy; see plimsoll models$"):
        transformers_outline(config(auto_map=auto_map), folder)


def test_transformers_class_comes_first(folder: Path) -> None:
    mine = {"AutoModelForCausalLM": "broken.Model"}
    (folder / "broken.py").write_text("1 / 0\n")
    named = config(model_type="llama", architectures=["LlamaForCausalLM"], auto_map=mine)
    assert transformers_outline(named, folder).facts.architecture == "LlamaForCausalLM"


def test_models_of_a_host_bring_none() -> None:
    with pytest.raises(UsageError, match="runtime has no trustRemoteCode"):
        check_spec(ModelSpec(revision="1", source="hf://a/b", runtime={"trustRemoteCode": True}))
