"""A head in the files is used, independent of config.json's tied embeddings and of Transformers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support.tiny import edit_config, make_model, save_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from plimsoll_runtime.driver.build.model_facts import Model, from_files
from plimsoll_runtime.driver.estimate import fit
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry.registry import FAMILIES
from plimsoll_runtime.models.transformers_code.outline import TransformersOutline
from plimsoll_runtime.models.validation import tie_embeddings
from plimsoll_runtime.weights.sources.resolve import resolve

CPU = torch.device("cpu")
HEADS = {
    "LlamaConfig": ("lm_head.weight", "model.embed_tokens.weight"),
    "GPT2Config": ("lm_head.weight", "transformer.wte.weight"),
    "GPTNeoXConfig": ("embed_out.weight", "gpt_neox.embed_in.weight"),
    "Gemma3TextConfig": ("lm_head.weight", "model.embed_tokens.weight"),
    "MambaConfig": ("lm_head.weight", "backbone.embeddings.weight"),
    "Lfm2Config": ("lm_head.weight", "model.embed_tokens.weight"),
    "SmolLM3Config": ("lm_head.weight", "model.embed_tokens.weight"),
}
VALUES: dict[str, dict[str, Any]] = {
    "GPT2Config": {"n_embd": 48, "n_head": 4, "n_layer": 2},
    "GPTNeoXConfig": {"num_attention_heads": 6, "rotary_pct": 0.5},
    "MambaConfig": {"state_size": 4},
    "Lfm2Config": {"block_auto_adjust_ff_dim": False},
    "Gemma3TextConfig": {"final_logit_softcapping": None},
}


def saved(kind: str, folder: Path, *, copied: bool = False) -> tuple[Tensor, Tensor]:
    """Save a model whose config ties the embeddings and whose files have both tensors."""
    save_model(make_model(kind, {**VALUES.get(kind, {}), "tie_word_embeddings": False}), folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    head, embedding = HEADS[kind]
    if copied:
        tensors[head] = tensors[embedding].clone()
    save_file(tensors, path, {"format": "pt"})
    edit_config(folder, drop=("tie_embedding",), tie_word_embeddings=True)
    return tensors[head], tensors[embedding]


def found(folder: Path, **options: Any) -> Model:
    return from_files(EngineConfig(model=str(folder), dtype="float32", **options), resolve(str(folder)), CPU)


def logits_of(model: Model, states: Tensor) -> Tensor:
    assert model.files is not None
    decoder = load_decoder(model.files, model.outline, torch.float32, device=CPU)
    with torch.inference_mode():
        return decoder.logits(states)


BY_TRANSFORMERS = ("LlamaConfig", "GPTNeoXConfig", "Gemma3TextConfig", "Lfm2Config")
"""Classes whose head computes logits from hidden states alone."""


@pytest.mark.matrix(4)
@pytest.mark.parametrize(
    ("kind", "impl"), [*((kind, "auto") for kind in HEADS), *((kind, "transformers") for kind in BY_TRANSFORMERS)]
)
def test_logits_are_those_of_the_files_head(
    kind: str, impl: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head, embedding = saved(kind, tmp_path)
    states = torch.randn(5, 48, generator=torch.Generator().manual_seed(3))
    model = found(tmp_path, model_impl=impl)
    assert isinstance(model.outline, TransformersOutline) is (impl == "transformers")
    ours = logits_of(model, states)
    torch.testing.assert_close(ours, states @ head.T)
    assert (ours - states @ embedding.T).abs().max() > 0.1
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"have a {HEADS[kind][0]} that differs from {HEADS[kind][1]}" in told
    assert "'tie_word_embeddings': True" in told


@pytest.mark.matrix(5)
@pytest.mark.parametrize("kind", HEADS)
def test_a_copy_of_the_embedding_is_no_contradiction(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, embedding = saved(kind, tmp_path, copied=True)
    states = torch.randn(5, 48)
    model = found(tmp_path)
    torch.testing.assert_close(logits_of(model, states), states @ embedding.T)
    assert not caplog.records
    assert model.outline.weight_bytes(torch.float32) < _untied_bytes(tmp_path)


def _untied_bytes(folder: Path) -> int:
    edit_config(folder, tie_word_embeddings=False)
    return found(folder).outline.weight_bytes(torch.float32)


def test_the_last_number_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are compared a few at a time, and none is skipped."""
    monkeypatch.setattr(tie_embeddings, "_ROWS", 7)
    saved("LlamaConfig", tmp_path, copied=True)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"][-1, -1] += 1
    save_file(tensors, path, {"format": "pt"})
    states = torch.ones(1, 48)
    torch.testing.assert_close(logits_of(found(tmp_path), states), states @ tensors["lm_head.weight"].T)


def test_the_field_that_lfm2_has_of_its_own(tmp_path: Path) -> None:
    head, _ = saved("Lfm2Config", tmp_path)
    edit_config(tmp_path, drop=("tie_word_embeddings",), tie_embedding=True)
    states = torch.ones(1, 48)
    torch.testing.assert_close(logits_of(found(tmp_path), states), states @ head.T)


def test_a_copy_in_another_dtype_is_a_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved("LlamaConfig", tmp_path, copied=True)
    path = tmp_path / "model.safetensors"
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(path).items()}
    tensors["lm_head.weight"] = tensors["lm_head.weight"].float()
    save_file(tensors, path, {"format": "pt"})
    edit_config(tmp_path, dtype="bfloat16")
    assert tie_embeddings.own_head(resolve(str(tmp_path)), found(tmp_path).outline) is None


def test_an_image_wakes_with_the_files_head(tmp_path: Path) -> None:
    """The config in an image says that embeddings are not tied."""
    saved("LlamaConfig", tmp_path)
    assert json.loads(found(tmp_path).described)["tie_word_embeddings"] is False


def test_memory_counts_the_head(tmp_path: Path) -> None:
    head, _ = saved("LlamaConfig", tmp_path)
    config = EngineConfig(model="m", dtype="float32", attention_backend="torch", max_batch_tokens=64, max_sequences=4)
    own = fit(resolve(str(tmp_path)), config).weights
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}, path, {"format": "pt"})
    assert own - fit(resolve(str(tmp_path)), config).weights == head.nbytes


def test_a_head_of_another_shape_is_refused(tmp_path: Path) -> None:
    saved("LlamaConfig", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "lm_head.weight": tensors["lm_head.weight"][:-1].clone()}, path, {"format": "pt"})
    with pytest.raises(ModelError, match=r"wrong shape: lm_head\.weight"):
        logits_of(found(tmp_path), torch.ones(1, 48))


def test_a_family_that_always_ties_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe = FAMILIES["LlamaForCausalLM"]
    always = {"LlamaForCausalLM": lambda config: describe({**config, "tie_word_embeddings": True})}
    monkeypatch.setattr("plimsoll_runtime.models.registry.registry.FAMILIES", always)
    saved("LlamaConfig", tmp_path)
    with pytest.raises(
        ModelError, match=r"LlamaForCausalLM always ties embedding and head, .* a lm_head\.weight that differs from"
    ):
        found(tmp_path)
