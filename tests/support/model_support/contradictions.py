"""Checkpoints with contradictions: one for each row of the table in docs/tasks/models.md."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from model_support.quantised import FORMS, quantise
from model_support.tiny import VOCAB, edit_config
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from torch import Tensor

Change = Callable[[Path], None]
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
ATTENTION = "model.layers.{}.self_attn."
MLP = "model.layers.{}.mlp."
QK_NORMS = {f"{ATTENTION}{part}_norm.weight" for part in "qk"}


@dataclass(frozen=True)
class Contradiction:
    """A model whose statements contradict each other.

    - `kind`, `values`: the config's class in Transformers and its fields, saved as Transformers saves them.
    - `change`: introduces the contradiction.
    - `says`: parts of the expected warning or error.
    - `like`: the same numbers without a contradiction; `unlike`: those of the unused statement.
    """

    change: Change
    says: tuple[str, ...] = ()
    like: Change | None = None
    unlike: Change | None = None
    kind: str = "LlamaConfig"
    values: Mapping[str, Any] = field(default_factory=dict)


def config(*drop: str, **values: Any) -> Change:
    """Return a change that drops and sets fields of config.json."""
    return lambda folder: edit_config(folder, drop=drop, **values)


def both(*changes: Change) -> Change:
    """Return a change that applies several in order."""

    def apply(folder: Path) -> None:
        for change in changes:
            change(folder)

    return apply


def nothing(folder: Path) -> None:
    """Change nothing."""


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Change:
    """Return a change of the file's tensors."""

    def apply(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change(found)
        save_file(found, folder / WEIGHTS, {"format": "pt"})

    return apply


def more(*names: str, size: int = 48) -> Change:
    """Return a change that adds vectors to each layer; `{}` in a name is its number."""
    return tensors(
        lambda found: found.update({name.format(i): torch.ones(size) for name in names for i in _layers(found)})
    )


def without(*ends: str) -> Change:
    """Return a change that removes tensors with these suffixes."""

    def change(found: dict[str, Tensor]) -> None:
        for name in [name for name in found if name.endswith(ends)]:
            del found[name]

    return tensors(change)


def copied_head(found: dict[str, Tensor]) -> None:
    """Add a head equal to the embedding."""
    found[HEAD] = found[EMBEDDING].clone()


def stored_as(dtype: torch.dtype, through: torch.dtype) -> Change:
    """Return a change that stores all tensors in a dtype, rounded to another."""
    return tensors(lambda found: found.update({name: each.to(through).to(dtype) for name, each in found.items()}))


def text(name: str, **content: Any) -> Change:
    """Return a change of a JSON file."""
    return lambda folder: _write(folder / name, json.dumps(content))


def template(words: str) -> Change:
    """Return a change that writes a chat template file."""
    return lambda folder: _write(folder / "chat_template.jinja", words)


def words(count: int, *added: str) -> Change:
    """Write a tokenizer with `count` words and added tokens."""

    def apply(folder: Path) -> None:
        made = Tokenizer(models.WordLevel({f"w{i}": i for i in range(count)}, unk_token="w0"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        made.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in added])
        made.save(str(folder / "tokenizer.json"))

    return apply


def shards(*, named: tuple[str, ...] = (), unnamed: tuple[str, ...] = ()) -> Change:
    """Split the weights into two files and an index that names missing tensors and lacks existing ones."""

    def apply(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        places = {name: f"model-0000{1 + (i > 8)}-of-00002.safetensors" for i, name in enumerate(sorted(found))}
        for file in set(places.values()):
            part = {name: tensor for name, tensor in found.items() if places[name] == file}
            save_file(part, folder / file, {"format": "pt"})
        (folder / WEIGHTS).unlink()
        listed = {**places, **dict.fromkeys(named, min(places.values()))}
        weight_map = {name: file for name, file in listed.items() if name not in unnamed}
        _write(folder / INDEX, json.dumps({"metadata": {}, "weight_map": weight_map}))

    return apply


def stale(folder: Path) -> None:
    """Write zeros to a file that the index does not name."""
    found = load_file(next(folder.glob("model-00001-*")))
    save_file({name: torch.zeros_like(tensor) for name, tensor in found.items()}, folder / WEIGHTS, {"format": "pt"})


def seeing(outer: bool | None, inner: bool | None) -> Change:
    """Wrap the text model in a multimodal config, with `tie_word_embeddings` in both parts; None: missing."""

    def apply(folder: Path) -> None:
        own = json.loads((folder / "config.json").read_text())
        own.pop("tie_word_embeddings")
        said = [{} if tied is None else {"tie_word_embeddings": tied} for tied in (outer, inner)]
        whole = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "dtype": "float32"}
        _write(folder / "config.json", json.dumps({**whole, **said[0], "text_config": {**own, **said[1]}}))

    return apply


def modelopt(folder: Path) -> None:
    """Quantise to FP8 in NVIDIA ModelOpt's format."""
    plain = folder.parent / f"{folder.name}-plain"
    quantise(folder, FORMS["modelopt"], plain)
    shutil.rmtree(plain)


def rope(**values: Any) -> dict[str, Any]:
    """Return parameters of a rotary embedding."""
    return {"rope_theta": 10_000.0, "rope_type": "default", **values}


def ends(of_config: Any, of_generation: Any, token: str | None = None) -> Change:
    """Return a change of the stop tokens in each file; the tokenizer has `</s>` after its words."""
    named = {} if token is None else {"eos_token": token}
    return both(
        words(VOCAB - 2, "</s>"),
        config(eos_token_id=of_config),
        text("generation_config.json", eos_token_id=of_generation),
        text("tokenizer_config.json", **named),
    )


def _layers(found: Mapping[str, Tensor]) -> Iterator[int]:
    return (i for i in range(9) if f"model.layers.{i}.input_layernorm.weight" in found)


def _write(path: Path, content: str) -> None:
    path.write_text(content)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA: Mapping[str, Any] = {"sliding_window": 4, "head_dim": 12, "layer_types": TYPES}
SMOL: Mapping[str, Any] = {"no_rope_layers": [1, 0, 1], "tie_word_embeddings": False}
HI = "{% for m in messages %}{{ m.content }}{% endfor %}"
END = VOCAB - 2
"""The id of `</s>`."""

ROWS: Mapping[str, Contradiction] = {
    "tied-own-head": Contradiction(
        config(tie_word_embeddings=True),
        ("'tie_word_embeddings': True", "lm_head.weight that differs from model.embed_tokens.weight"),
        like=nothing,
        unlike=both(without(HEAD), config(tie_word_embeddings=True)),
    ),
    "tied-copied-head": Contradiction(
        both(tensors(copied_head), config(tie_word_embeddings=True)),
        like=both(without(HEAD), config(tie_word_embeddings=True)),
    ),
    "untied-no-head": Contradiction(without(HEAD), (HEAD, "tie_word_embeddings = False")),
    "tied-twice": Contradiction(
        seeing(False, True), ("tie_word_embeddings = False", "in text_config it is True"), like=seeing(False, None)
    ),
    "bias-unexpected": Contradiction(
        more(ATTENTION + "q_proj.bias"), ("model.layers.0.self_attn.q_proj.bias", "attention_bias = False")
    ),
    "bias-missing": Contradiction(
        config(attention_bias=True), ("lack model.layers.0.self_attn.q_proj.bias", "attention_bias = True")
    ),
    "mlp-bias-unexpected": Contradiction(more(MLP + "down_proj.bias"), ("mlp.down_proj.bias", "mlp_bias = False")),
    "mlp-bias-missing": Contradiction(config(mlp_bias=True), ("lack model.layers.0.mlp", "mlp_bias = True")),
    "norms-unexpected": Contradiction(
        config(use_qk_norm=False),
        ("self_attn.q_norm.weight", "use_qk_norm = False"),
        kind="CohereConfig",
        values={"use_qk_norm": True},
    ),
    "norms-missing": Contradiction(
        config(use_qk_norm=True), ("lack model.layers.0.self_attn.q_norm", "use_qk_norm = True"), kind="CohereConfig"
    ),
    "heads": Contradiction(
        config(num_attention_heads=8), ("q_proj.weight [48, 48] instead of [96, 48]", "num_attention_heads = 8")
    ),
    "kv-heads": Contradiction(
        config(num_key_value_heads=4), ("k_proj.weight [24, 48] instead of [48, 48]", "num_key_value_heads = 4")
    ),
    "head-dim": Contradiction(config(head_dim=8), ("q_proj.weight [48, 48] instead of [32, 48]", "head_dim = 8")),
    "hidden-size": Contradiction(
        config(intermediate_size=96), ("gate_proj.weight [80, 48] instead of [96, 48]", "intermediate_size = 96")
    ),
    "vocabulary-embedding": Contradiction(
        config(vocab_size=VOCAB + 2), ("embed_tokens.weight [20, 48] instead of [22, 48]", "vocab_size = 22")
    ),
    "vocabulary-tokenizer-larger": Contradiction(
        words(VOCAB + 1), ("vocab_size = 20", "the tokenizer has 21 tokens"), like=words(VOCAB)
    ),
    "vocabulary-tokenizer-smaller": Contradiction(words(VOCAB - 3), like=words(VOCAB)),
    "layers-more": Contradiction(config(num_hidden_layers=2), ("model.layers.2.", "num_hidden_layers = 2")),
    "layers-fewer": Contradiction(config(num_hidden_layers=4), ("lack model.layers.3.", "num_hidden_layers = 4")),
    "experts": Contradiction(config(num_local_experts=4), ("experts.", "num_local_experts = 4"), kind="MixtralConfig"),
    "other-tensors": Contradiction(
        tensors(lambda found: found.update({"visual.proj.weight": torch.ones(2, 2)})),
        ("unexpected tensors: visual.proj.weight", "config.json does not match the weights"),
    ),
    "layer-types-count": Contradiction(
        config(layer_types=["full_attention"] * 2), ("layer_types has 2 layers", "num_hidden_layers is 3")
    ),
    "layer-types-window": Contradiction(
        config(layer_types=TYPES, sliding_window=4),
        ("layer_types is sliding_attention for layer 0", "use_sliding_window = False, sliding_window = 4"),
        kind="Qwen2Config",
    ),
    "layer-types-pattern": Contradiction(
        config(sliding_window_pattern=3),
        ("layer_types = ['sliding_attention', 'full_attention'", "sliding_window_pattern = 3"),
        like=nothing,
        unlike=config("layer_types", sliding_window_pattern=3),
        kind="Gemma3TextConfig",
        values=GEMMA,
    ),
    "no-rope-pattern": Contradiction(
        config(no_rope_layer_interval=3),
        ("no_rope_layers = [1, 0, 1]", "no_rope_layer_interval = 3"),
        like=config("no_rope_layer_interval"),
        unlike=config("no_rope_layers", no_rope_layer_interval=3),
        kind="SmolLM3Config",
        values=SMOL,
    ),
    "rope-dictionaries": Contradiction(
        config(rope_scaling={"rope_type": "linear", "factor": 2.0}), ("rope_parameters = {", "rope_scaling = {")
    ),
    "rope-theta": Contradiction(
        config(rope_theta=500.0),
        ("rope_theta = 500.0", "rope_theta in rope_parameters is 10000.0"),
        like=nothing,
        unlike=config("rope_parameters", rope_theta=500.0),
    ),
    "rope-share": Contradiction(
        config(partial_rotary_factor=1.0),
        ("partial_rotary_factor = 1.0", "partial_rotary_factor in rope_parameters is 0.5"),
        like=nothing,
        unlike=config("rope_parameters", partial_rotary_factor=1.0),
        kind="PhiConfig",
    ),
    "rope-original": Contradiction(
        config(rope_parameters=rope(**LLAMA3, original_max_position_embeddings=64), original_max_position_embeddings=8),
        ("original_max_position_embeddings = 8", "in rope_parameters it is 64"),
        like=config(rope_parameters=rope(**LLAMA3, original_max_position_embeddings=8)),
        unlike=config(rope_parameters=rope(**LLAMA3, original_max_position_embeddings=64)),
    ),
    "rope-type": Contradiction(
        config(rope_parameters={**rope(rope_type="linear", factor=4.0), "type": "default"}),
        ("rope_type = 'linear'", "type = 'default'"),
        like=config(rope_parameters=rope(rope_type="linear", factor=4.0)),
        unlike=nothing,
    ),
    "classes": Contradiction(
        config(model_type="qwen3"), ("LlamaForCausalLM", "model_type is qwen3 (Qwen3ForCausalLM)")
    ),
    "dtype-tensors": Contradiction(
        stored_as(torch.bfloat16, torch.bfloat16),
        ("dtype = float32", "stored as bfloat16"),
        like=stored_as(torch.float32, torch.bfloat16),
    ),
    "dtype-twice": Contradiction(
        config(torch_dtype="bfloat16"), ("dtype = float32", "torch_dtype = bfloat16"), like=nothing
    ),
    "quantised-not": Contradiction(
        config(quantization_config={"quant_method": "fp8"}), ("says fp8", "stored as float32"), like=nothing
    ),
    "quantised-twice": Contradiction(
        both(modelopt, text("hf_quant_config.json", quantization={"quant_algo": "FP8_PB_WO"})),
        ("quant_algo = 'FP8'", "hf_quant_config.json says 'FP8_PB_WO'"),
        like=modelopt,
    ),
    "index-lacks": Contradiction(shards(unnamed=(HEAD,)), ("index.json lacks", HEAD), like=nothing),
    "index-names-more": Contradiction(
        shards(named=("model.extra.weight",)), ("index.json names tensors", "model.extra.weight"), like=nothing
    ),
    "files-unread": Contradiction(both(shards(), stale), ("model.safetensors is not read", INDEX), like=nothing),
    "ends": Contradiction(
        ends(3, 4, "</s>"),
        ("[4] by generation_config.json", "[3] by config.json", f"[{END}] by tokenizer_config.json (</s>)"),
        like=ends(3, [3, 4, END]),
        unlike=ends(3, 3),
    ),
    "ends-all-in-one": Contradiction(ends(3, [3, END], "</s>"), like=ends([3, END], None), unlike=ends(3, None)),
    "ends-beyond": Contradiction(
        ends([3, VOCAB], None), ("the EOS tokens [20] are outside", "vocab_size 20"), unlike=ends(4, None)
    ),
    "end-without-token": Contradiction(
        ends(3, None, "<|none|>"), ("eos_token in tokenizer_config.json is '<|none|>'",), like=ends(3, None)
    ),
    "token-ids": Contradiction(
        both(
            ends(END, None),
            text("tokenizer_config.json", eos_token="</s>", added_tokens_decoder={"5": {"content": "</s>"}}),
        ),
        (f"gives '</s>' the id 5 instead of {END}",),
        like=ends(END, None),
        unlike=ends([5, END], None),
    ),
    "token-names": Contradiction(
        both(
            ends(3, None, "w5"),
            text("tokenizer_config.json", eos_token="w5", added_tokens_decoder={str(END): {"content": "</s>"}}),
            text("special_tokens_map.json", eos_token="</s>"),
            config(eos_token_id=5),
        ),
        ("eos_token is 'w5' in tokenizer_config.json", "'</s>' in special_tokens_map.json"),
        like=ends(5, None),
        unlike=ends(END, None),
    ),
    "templates": Contradiction(
        both(text("tokenizer_config.json", chat_template="{{ messages }}"), template(HI)),
        ("chat template of tokenizer_config.json differs from chat_template.jinja",),
        like=template(HI),
        unlike=text("tokenizer_config.json", chat_template="{{ messages }}"),
    ),
    "adapter": Contradiction(
        text("adapter_config.json", peft_type="LORA"), ("an adapter next to the model", "adapter_config.json")
    ),
}
"""Contradictions by the names of the table's rows."""
