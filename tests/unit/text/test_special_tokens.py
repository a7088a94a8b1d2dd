"""An output ends at every token that any of the model's files names as EOS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.text.special_tokens import end_ids
from plimsoll_runtime.weights.files import ModelFiles

ADDED = {"1": {"content": "<|endoftext|>"}, "3": {"content": "<|im_end|>"}}


def files(root: Path, config: Any = 1, generation: Any = None, format_: Any = "safetensors") -> ModelFiles:
    return ModelFiles("m", root, format_, {"eos_token_id": config}, (), {"eos_token_id": generation})


def write(folder: Path, name: str, **content: Any) -> None:
    (folder / name).write_text(json.dumps(content))


def test_a_chat_model_whose_config_still_names_the_base_models_end(tmp_path: Path) -> None:
    write(tmp_path, "tokenizer_config.json", eos_token="<|im_end|>", added_tokens_decoder=ADDED)
    assert end_ids(files(tmp_path)) == (1, 3)


@pytest.mark.parametrize("token", ["<|im_end|>", {"content": "<|im_end|>", "lstrip": False}])
def test_tokens_that_only_the_tokenizer_knows(token: Any, tmp_path: Path) -> None:
    write(tmp_path, "tokenizer_config.json", eos_token=token)
    write(tmp_path, "tokenizer.json", added_tokens=[{"id": 7, "content": "<|im_end|>", "special": True}], model={})
    assert end_ids(files(tmp_path, [2, 1])) == (1, 2, 7)


def test_null_hides_nothing(tmp_path: Path) -> None:
    assert end_ids(files(tmp_path, 5, None)) == (5,)
    assert end_ids(files(tmp_path, None, [4])) == (4,)
    assert end_ids(files(tmp_path, None, None)) == ()


def test_all_are_taken(tmp_path: Path) -> None:
    assert end_ids(files(tmp_path, 2, [4, 3])) == (2, 3, 4)


def test_a_text_that_is_no_token_ends_nothing(tmp_path: Path) -> None:
    write(tmp_path, "tokenizer_config.json", eos_token="<|none|>", added_tokens_decoder=ADDED)
    assert end_ids(files(tmp_path)) == (1,)
    write(tmp_path, "tokenizer_config.json", eos_token=None, added_tokens_decoder=ADDED)
    assert end_ids(files(tmp_path)) == (1,)


def test_a_gguf_file_says_it_all_in_its_config(tmp_path: Path) -> None:
    write(tmp_path, "tokenizer_config.json", eos_token="<|im_end|>", added_tokens_decoder=ADDED)
    assert end_ids(files(tmp_path, [1, 2], format_="gguf")) == (1, 2)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, "tokenizer_config.json", eos_token="</s>")
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"id": "x"')
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        end_ids(files(tmp_path))
