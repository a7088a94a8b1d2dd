"""Tensors as llama.cpp's converter writes them: joined, split, transposed and renamed."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(.+)")
NEMOTRON = re.compile(r"backbone\.layers\.(\d+)\.mixer\.experts\.(up|down)_proj\.weight")
SPLIT = {"block_sparse_moe.input_linear": "exps", "shared_mlp.input_linear": "shexp"}
"""Granite's tensors with gates above up projections, and llama.cpp's names of both."""
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
RECURRENT = (
    "mamba",
    "falcon_mamba",
    "mamba2",
    "jamba",
    "falcon_h1",
    "lfm2",
    "granitemoehybrid",
    "nemotron_h",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
)
GEMMA = ("gemma3n_text", "gemma4_text")
INTERLEAVED = dict.fromkeys(("gpt_neox", "bloom", "falcon"), "attention.query_key_value")
"""Models whose queries, keys and values are interleaved by head, or in Falcon by group."""


def is_converted(config: Any) -> bool:
    """Return whether the converter changes a model's tensors."""
    counts = ("num_local_experts", "num_experts", "n_routed_experts")
    mixture = any(getattr(config, name, None) for name in (*counts, "moe_num_experts"))
    return mixture or config.model_type in ("gpt2", "gpt_bigcode", "mpt", *INTERLEAVED, *RECURRENT, *GEMMA)


def converted(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors under Transformers' names known to the gguf package, or under llama.cpp's."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = load_file(Path(folder) / "model.safetensors")
    if model.config.model_type == "gemma3n_text":
        saved = _streams_joined(saved)
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in saved.items():
        if match := EXPERT.fullmatch(name):
            experts.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = tensor
        else:
            yield from _changed(name, tensor, model.config)
    for name, stack in experts.items():
        name = name.removeprefix("model.") if model.config.model_type == "lfm2_moe" else name
        if match := NEMOTRON.fullmatch(name):
            name = f"blk.{match[1]}.ffn_{match[2]}_exps.weight"
        yield name, torch.stack([stack[number] for number in range(len(stack))])


def _changed(name: str, tensor: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    if config.model_type in OWN_WAYS:
        yield from OWN_WAYS[config.model_type](name, tensor, config)
        return
    yield from _of_mixtures(name, tensor, config)


def _beside(name: str, theirs: str) -> str:
    """Return llama.cpp's name of another tensor in the same layer."""
    block = re.search(r"layers\.(\d+)\.", name)
    assert block is not None
    return f"blk.{block[1]}.{theirs}"


def _of_mixtures(name: str, tensor: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    for part, kind in SPLIT.items():
        if name.endswith(f"{part}.weight"):
            own = "" if kind == "shexp" and getattr(config, "num_local_experts", 1) == 0 else f"_{kind}"
            for which, half in zip(("gate", "up"), tensor.chunk(2, dim=-2), strict=True):
                yield _beside(name, f"ffn_{which}{own}.weight"), half
            return
    if name.endswith("shared_mlp.output_linear.weight") and config.num_local_experts == 0:
        yield _beside(name, "ffn_down.weight"), tensor
        return
    if config.model_type == "gpt2" and name.endswith(TRANSPOSED):
        tensor = tensor.t()
    elif (part := INTERLEAVED.get(config.model_type, "-")) in name:
        tensor = _part_by_part(tensor, config)
    yield name.replace("e_score_correction_bias", "e_score_correction.bias"), tensor.squeeze()


def _part_by_part(tensor: Tensor, config: Any) -> Tensor:
    """Return all queries, then all keys, then all values."""
    heads = groups = config.num_attention_heads
    if config.model_type == "falcon":
        groups = config.num_kv_heads if config.new_decoder_architecture else 1
    each = tensor.view(groups, heads // groups + 2, -1, *tensor.shape[1:])
    return torch.cat(
        [part.reshape(-1, *tensor.shape[1:]) for part in torch.split(each, [heads // groups, 1, 1], dim=1)]
    )


def _recurrent(name: str, tensor: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    """Convert tensors of any Mamba: decays are not logarithms, and shapes are llama.cpp's."""
    heads = config.model_type not in ("mamba", "falcon_mamba", "jamba")
    if name.endswith(".A_log"):
        tensor = -tensor.exp()
    if heads and name.endswith((".A_log", ".D")):
        tensor = tensor[:, None]
    if name.endswith(("conv1d.weight", "conv.conv.weight")):
        tensor = tensor.squeeze(1)
    if name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        tensor = tensor.view(getattr(config, "mamba_n_groups", None) or config.n_groups, -1)
    if name.endswith((".A_log", ".D", "mixer.norm.weight", "mamba.norm.weight")):
        yield name, tensor
        return
    yield from _of_mixtures(name.replace(".dt_bias", ".dt_proj.bias"), tensor, config)


def _lfm2(name: str, tensor: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    tensor = tensor.squeeze(1) if "conv.conv" in name else tensor
    yield name.replace("expert_bias", "expert_bias.bias"), tensor


def _falcon_h1(name: str, tensor: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    """Fold the config's multipliers into the weights."""
    gate, down = config.mlp_multipliers
    scales = {
        "feed_forward.down_proj": down,
        "feed_forward.gate_proj": gate,
        "self_attn.k_proj": config.key_multiplier * config.attention_in_multiplier,
        "self_attn.q_proj": config.attention_in_multiplier,
        "self_attn.v_proj": config.attention_in_multiplier,
        "self_attn.o_proj": config.attention_out_multiplier,
        "mamba.out_proj": config.ssm_out_multiplier,
        "lm_head": config.lm_head_multiplier,
        "embed_tokens": config.embedding_multiplier,
    }
    scale = next((scale for part, scale in scales.items() if part in name), 1.0)
    if "mamba.in_proj" in name:
        inner, shared = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
        parts = (inner, inner, shared, shared, config.mamba_n_heads)
        each = [torch.full((n,), x) for n, x in zip(parts, config.ssm_multipliers, strict=True)]
        tensor = tensor * torch.cat(each)[:, None] * config.ssm_in_multiplier
    yield from _recurrent(name, tensor * scale, config)


def _gpt_oss(name: str, tensor: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    """Split gates from up projections, and transpose experts' matrices."""
    if "experts" not in name:
        yield name + ".weight" * name.endswith("sinks"), tensor
        return
    ending = "bias" if name.endswith("_bias") else "weight"
    turned = tensor.mT if ending == "weight" else tensor
    for which, part in (
        (("gate", turned[:, ::2]), ("up", turned[:, 1::2])) if "gate_up" in name else (("down", turned),)
    ):
        yield _beside(name, f"ffn_{which}_exps.{ending}"), part.contiguous()


def _qwen3_next(name: str, tensor: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    if name.endswith("in_proj_qkvz.weight"):
        values = config.linear_num_value_heads // config.linear_num_key_heads * config.linear_value_head_dim
        sizes = [config.linear_key_head_dim] * 2 + [values] * 2
        grouped = tensor.view(config.linear_num_key_heads, sum(sizes), -1)
        q, k, v, z = (part.reshape(-1, tensor.shape[1]) for part in torch.split(grouped, sizes, dim=1))
        yield _beside(name, "attn_qkv.weight"), torch.cat([q, k, v])
        yield _beside(name, "attn_gate.weight"), z
        return
    if name.endswith(".A_log"):
        tensor = -tensor.exp()
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        tensor = tensor + 1
    yield name.replace(".dt_bias", ".dt_proj.bias"), tensor.squeeze()


def _streams_joined(saved: dict[str, Tensor]) -> dict[str, Tensor]:
    """Join the matrices of all streams."""
    parts = ("model.altup_projections", "model.altup_unembed_projections")
    joined = {
        f"{part}.weight": torch.stack([saved[name] for name in sorted(saved) if name.startswith(f"{part}.")])
        for part in parts
    }
    return {**{name: tensor for name, tensor in saved.items() if not name.startswith(parts)}, **joined}


def _gemma(name: str, tensor: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    """Add missing suffixes, and pad the table of per-layer inputs to the vocabulary."""
    for ending, theirs in (("router.scale", "ffn_gate_inp.scale"), ("per_expert_scale", "ffn_down_exps.scale")):
        if name.endswith(ending):
            yield _beside(name, theirs), tensor
            return
    if "embed_tokens_per_layer" in name:
        tensor = torch.cat([tensor, tensor.new_zeros(config.vocab_size - len(tensor), tensor.shape[1])])
    yield name + ".weight" * (not name.endswith(".weight")), tensor


def _qwen35(name: str, tensor: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    """Reorder value heads: the first of each key head, then the second."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    before = 2 * keys * config.linear_key_head_dim
    if "linear_attn." in name and not name.endswith("linear_attn.norm.weight"):
        if name.endswith("out_proj.weight"):
            tensor = _in_turns(tensor.t(), keys, values).t().contiguous()
        elif name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
            tensor = torch.cat([tensor[:before], _in_turns(tensor[before:], keys, values)])
        else:
            tensor = _in_turns(tensor, keys, values)
    yield from _qwen3_next(name, tensor, config)


def _in_turns(rows: Tensor, keys: int, values: int) -> Tensor:
    each = rows.reshape(keys, values // keys, rows.shape[0] // values, *rows.shape[1:])
    return each.transpose(0, 1).reshape(rows.shape)


def _deepseek(name: str, tensor: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    if not name.endswith("kv_b_proj.weight"):
        yield from _of_mixtures(name, tensor, config)
        return
    each = tensor.view(config.num_attention_heads, config.qk_nope_head_dim + config.v_head_dim, -1)
    keys, values = torch.split(each, [config.qk_nope_head_dim, config.v_head_dim], dim=1)
    yield _beside(name, "attn_k_b.weight"), keys.mT.contiguous()
    yield _beside(name, "attn_v_b.weight"), values.contiguous()


OWN_WAYS: dict[str, Callable[[str, Tensor, Any], Iterator[tuple[str, Tensor]]]] = {
    **dict.fromkeys(RECURRENT, _recurrent),
    **dict.fromkeys(GEMMA, _gemma),
    "falcon_h1": _falcon_h1,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "gpt_oss": _gpt_oss,
    "qwen3_next": _qwen3_next,
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), _qwen35),
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}
"""Converters of models that do not follow the mixtures' rule."""
