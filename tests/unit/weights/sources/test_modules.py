"""sentence-transformers files next to a model are read, and rejected if they are invalid."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.files import PARTS
from plimsoll_runtime.weights.sources.hub import module_paths
from plimsoll_runtime.weights.sources.resolve import resolve
from plimsoll_runtime.weights.tensor_source import open_tensors

ROWS = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.base.modules.dense.Dense"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    return tmp_path


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def test_modules_are_read_with_their_configs_and_tensors(folder: Path) -> None:
    write(folder / "modules.json", ROWS)
    write(folder / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    write(folder / "2_Dense" / "config.json", {"out_features": 3})
    save_file({"linear.weight": torch.ones(3, 2)}, folder / "2_Dense" / "model.safetensors")
    write(folder / "config_sentence_transformers.json", {"prompts": {"query": "q: "}, "similarity_fn_name": "cosine"})
    write(folder / "sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": None})
    files = resolve(str(folder))
    assert files.config[PARTS] == {
        "prompts": {"query": "q: "},
        "max_seq_length": 9,
        "modules": [
            {"kind": "Transformer", "path": "", "config": {}},
            {"kind": "Pooling", "path": "1_Pooling", "config": {"pooling_mode": "mean"}},
            {"kind": "Dense", "path": "2_Dense", "config": {"out_features": 3}},
        ],
    }
    source = open_tensors(files, {})
    assert source.shapes == {"x": (1,), "2_Dense.linear.weight": (3, 2)}
    assert torch.equal(source.stored("2_Dense.linear.weight").converted(torch.float32), torch.ones(3, 2))
    assert torch.equal(source.stored("x").converted(torch.float32), torch.zeros(1))


def test_a_folder_without_them_is_as_it_was(folder: Path) -> None:
    files = resolve(str(folder))
    assert (files.config, files.modules) == ({"model_type": "bert"}, {})


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("x", "is not a list of at most 32 modules"),
        ([1], "has an entry without a type"),
        ([{"type": 1}], "has an entry without a type"),
        ([{"type": "a.B", "path": "../elsewhere"}], "names '../elsewhere', which is not a folder below it"),
        ([{"type": "a.B", "path": "/etc"}], "names '/etc'"),
        ([{"type": "a.B", "path": 3}], "names 3"),
        ([ROWS[0]] * 33, "is not a list of at most 32 modules"),
    ],
)
def test_what_is_no_row_of_modules_is_refused(folder: Path, rows: Any, reason: str) -> None:
    write(folder / "modules.json", rows)
    with pytest.raises(ModelError, match=reason):
        resolve(str(folder))


def test_folders_that_a_hub_is_asked_for() -> None:
    assert module_paths(ROWS) == ["1_Pooling", "2_Dense"]
    assert module_paths([{"path": "../x"}, {"path": "/x"}, {"path": 1}, 5]) == []
    assert module_paths({"path": "x"}) == []
