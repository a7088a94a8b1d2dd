"""Loading accounts for every tensor: missing, unexpected and mis-shaped ones are named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from model_support.gguf_files import write_gguf
from model_support.tiny import edit_config, make_model, save_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.models.weight_reader import WeightReader
from plimsoll_runtime.weights.sources.resolve import resolve
from plimsoll_runtime.weights.tensor_source import open_tensors

CPU = torch.device("cpu")
NORM = "model.layers.1.input_layernorm.weight"
QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(make_model("LlamaConfig", {}), tmp_path)
    return tmp_path


def load(folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    files = resolve(str(folder))
    return load_decoder(files, program_of(describe(files.config)), dtype, device=CPU, **options)


def change(folder: Path, tensors: Mapping[str, Tensor | None]) -> None:
    """Add tensors to a model's file, or remove those that are None."""
    path = folder / "model.safetensors"
    changed = {**load_file(path), **tensors}
    save_file({name: t for name, t in changed.items() if t is not None}, path, {"format": "pt"})


def test_a_missing_tensor(folder: Path) -> None:
    change(folder, {QUERY: None})
    with pytest.raises(ModelError, match=f"LlamaForCausalLM: the weights lack {QUERY}; "):
        load(folder)


@pytest.mark.parametrize(("kind", "part"), [("GPT2Config", "transformer."), ("LlamaConfig", "model.")])
def test_files_that_were_saved_without_the_head(kind: str, part: str, tmp_path: Path) -> None:
    """Names in such files lack the model's prefix; tensors of the head may exist as well."""
    save_model(make_model(kind, {"head_dim": 12} if kind == "LlamaConfig" else {"n_embd": 48, "n_head": 4}), tmp_path)
    tokens = torch.arange(5)
    expected = load(tmp_path)
    path = tmp_path / "model.safetensors"
    bare = {name.removeprefix(part): tensor for name, tensor in load_file(path).items()}
    assert not any(name.startswith(part) for name in bare)
    if kind == "GPT2Config":
        bare["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)  # a mask, as files of older versions have it
    save_file(bare, path, {"format": "pt"})
    found = load(tmp_path)
    assert found.weight_bytes == expected.weight_bytes
    states = torch.randn(5, 48)
    assert torch.equal(found.logits(states), expected.logits(states))
    assert torch.equal(run(found, tokens), run(expected, tokens))


def run(decoder: Any, tokens: Tensor) -> Tensor:
    """Return the hidden states of a prompt."""
    shapes = decoder.outline.facts.attention
    backend = ReferenceBackend(KvCache(shapes, 2, 16, torch.float32, CPU))
    batch = AttentionBatch([len(tokens)], [len(tokens)], BlockTables.of([[1]]), tokens + 16)
    with torch.inference_mode():
        found: Tensor = decoder(tokens, tokens, backend.begin(batch))
    return found


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    edit_config(folder, num_hidden_layers=4)
    words = r"and 4 more; config\.json sets which tensors .* \(here: num_hidden_layers = 4\); correct it"
    with pytest.raises(ModelError, match=rf"lack model\.layers\.3\..* {words}"):
        load(folder)


def test_a_missing_head(folder: Path) -> None:
    change(folder, {"lm_head.weight": None})
    with pytest.raises(ModelError, match=r"lack lm_head\.weight"):
        load(folder)


@pytest.mark.parametrize(
    "name", ["model.layers.1.self_attn.q_proj.bias", "model.layers.3.input_layernorm.weight", "visual.proj"]
)
def test_an_unexpected_tensor(folder: Path, name: str) -> None:
    change(folder, {name: torch.zeros(48)})
    with pytest.raises(ModelError, match=f"unexpected tensors: {name}; "):
        load(folder)


def test_biases_that_the_config_asks_for(folder: Path) -> None:
    edit_config(folder, attention_bias=True)
    with pytest.raises(ModelError, match=r"lack model\.layers\.0\.self_attn\.q_proj\.bias"):
        load(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_norm_that_is_not_finite(folder: Path, value: float) -> None:
    change(folder, {NORM: torch.full((48,), value)})
    with pytest.raises(ModelError, match=f"{NORM} has numbers that are not finite: the file is damaged"):
        load(folder)


def test_a_wrong_shape(folder: Path) -> None:
    change(folder, {QUERY: torch.zeros(48, 32)})
    with pytest.raises(ModelError, match=rf"wrong shape: {QUERY} \[48, 32\] instead of \[48, 48\]; "):
        load(folder)


def test_what_is_computed_anyway_is_ignored(folder: Path) -> None:
    change(folder, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)})
    load(folder)


def test_the_copy_of_a_tied_head_is_ignored(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    change(folder, {"lm_head.weight": weights["model.embed_tokens.weight"].clone()})
    edit_config(folder, tie_word_embeddings=True)
    load(folder)


def test_progress_ends_at_one(folder: Path) -> None:
    seen: list[tuple[str, float]] = []
    load(folder, progress=lambda *at: seen.append(at))
    assert (seen[0], seen[-1]) == (("load weights", 0.0), ("load weights", 1.0))
    assert seen == sorted(seen)


def test_weights_are_counted_in_the_dtype_that_they_run_in(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors").values()
    matrices, vectors = (sum(t.numel() for t in tensors if t.dim() == dims) for dims in (2, 1))
    assert load(folder).weight_bytes == 4 * (matrices + vectors)
    half = load(folder, torch.bfloat16)
    assert (half.weight_bytes, half.dtype) == (2 * matrices + 4 * vectors, torch.bfloat16)
    program = program_of(describe(resolve(str(folder)).config))
    assert program.weight_bytes(torch.bfloat16) == half.weight_bytes


@pytest.mark.parametrize("source", ["safetensors", "gguf"])
@pytest.mark.parametrize("config", ["Gemma3TextConfig", "Qwen2Config"])
def test_vectors_stay_float32(tmp_path: Path, config: str, source: str) -> None:
    """Norms and biases of a bfloat16 run keep all bits of the file (those of Gemma in GGUF have an added 1)."""
    model = make_model(config, {"num_hidden_layers": 1})
    if source == "gguf":
        write_gguf(model, tmp_path / "model.gguf", GGMLQuantizationType.F32)
    else:
        save_model(model, tmp_path)
    files = resolve(str(tmp_path / "model.gguf" if source == "gguf" else tmp_path))
    program = program_of(describe(files.config))
    reader = WeightReader(
        program, open_tensors(files, program.stored_shapes()), torch.bfloat16, CPU, lambda stage, fraction: None
    )
    ours = {name: reader.read(weight) for name, weight in program.weights().items() if weight.is_vector}
    kept = {name: p.detach() for name, p in model.named_parameters() if p.dim() == 1}
    shifted = source == "gguf" and config.startswith("Gemma")
    expected = {name: (t + 1) - 1 if shifted else t for name, t in kept.items()}
    assert ours.keys() == expected.keys()
    for name, tensor in ours.items():
        assert tensor.dtype is torch.float32
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("content", ["", "{", "[]", '{"architectures": ["LlamaForCausalLM"]}'])
def test_a_config_that_is_none(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        load(folder)


def test_an_index_that_names_a_missing_file(folder: Path) -> None:
    shards = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))
    with pytest.raises(ModelError, match=r"has no model-00001-of-00002\.safetensors"):
        load(folder)
