"""What the metadata of recurrent models and hybrids say: which layers are of which kind, and how large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.gguf.fields import Pairs

Names = frozenset[str]
Config = Mapping[str, Any]
ATTENTION, LINEAR = "full_attention", "linear_attention"


def mamba(pairs: Pairs, names: Names, config: Config) -> dict[str, Any]:
    """Falcon's norms time steps and what is written and read by, which has no weights there."""
    pairs.get("attention.head_count", int, 0)
    normed = pairs.get("ssm.dt_b_c_rms", bool, False)
    return {
        "architectures": ["FalconMambaForCausalLM" if normed else "MambaForCausalLM"],
        "intermediate_size": pairs.get("ssm.inner_size", int),
        "state_size": pairs.get("ssm.state_size", int),
        "time_step_rank": pairs.get("ssm.time_step_rank", int),
        **_mamba_said(pairs, names),
    }


def mamba2(pairs: Pairs, names: Names, config: Config) -> dict[str, Any]:
    """Heads of Mamba 2 alone."""
    pairs.get("attention.head_count", int, 0)
    heads, head_dim, groups, state = _dual(pairs)
    return {
        "num_heads": heads,
        "head_dim": head_dim,
        "n_groups": groups,
        "state_size": state,
        **_mamba_said(pairs, names),
    }


def jamba(pairs: Pairs, names: Names, config: Config) -> dict[str, Any]:
    """Layers that attend, and those that have experts, come again after so many."""
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    every, first = _evenly(_attending(pairs, layers), layers, "attend")
    sparse = [i for i in range(layers) if f"blk.{i}.ffn_gate_exps.weight" in names]
    period, offset = _evenly(sparse, layers, "have experts")
    inner = pairs.get("ssm.inner_size", int)
    if not hidden or inner % hidden:
        raise ModelError(f"GGUF: ssm.inner_size is {inner}, and embedding_length {hidden}: not so many times as wide")
    experts, chosen = pairs.get("expert_count", int, 0), pairs.get("expert_used_count", int, 0)
    return {
        "attn_layer_period": every,
        "attn_layer_offset": first,
        "expert_layer_period": period,
        "expert_layer_offset": offset,
        "num_experts": experts if sparse else 1,
        "num_experts_per_tok": chosen,
        "mamba_expand": inner // hidden,
        "mamba_d_state": pairs.get("ssm.state_size", int),
        "mamba_dt_rank": pairs.get("ssm.time_step_rank", int),
        **_bamba_said(pairs, names),
    }


def falcon_h1(pairs: Pairs, names: Names, config: Config) -> dict[str, Any]:
    """Numbers by which the config multiplies are in the weights, and gates come before norms."""
    heads, head_dim, groups, state = _dual(pairs)
    return {
        "mamba_d_ssm": heads * head_dim,
        "mamba_n_heads": heads,
        "mamba_d_head": head_dim,
        "mamba_n_groups": groups,
        "mamba_d_state": state,
        "mamba_rms_norm": _some(names, "ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "projectors_bias": _some(names, "ssm_out.bias"),
        **_bamba_said(pairs, names),
    }


def lfm2(pairs: Pairs, names: Names, config: Config) -> dict[str, Any]:
    """Layers without heads of keys are convolutions. The width of MLPs is what it says."""
    layers = config["num_hidden_layers"]
    attends = set(_attending(pairs, layers))
    return {
        "layer_types": [ATTENTION if i in attends else "conv" for i in range(layers)],
        "conv_L_cache": pairs.get("shortconv.l_cache", int),
        "conv_bias": _some(names, "shortconv.conv.bias"),
        "block_auto_adjust_ff_dim": False,
    }


def granite_hybrid(pairs: Pairs, names: Names, config: Config) -> dict[str, Any]:
    """Raises ModelError for a Bamba, which llama.cpp's converter writes as one and turns by other pairs of numbers."""
    if pairs.get("rope.scaling.finetuned", bool, False):
        raise ModelError(
            "GGUF: granitehybrid.rope.scaling.finetuned = True is not supported: a Bamba turns half of each head, and "
            "the file has its queries in an order for heads that turn whole; take its safetensors"
        )
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    heads, head_dim, groups, state = _dual(pairs)
    if not hidden or heads * head_dim % hidden:
        raise ModelError(f"GGUF: ssm.inner_size is {heads * head_dim}, and not so many times as wide as {hidden}")
    attends = set(_attending(pairs, layers))
    return {
        "layer_types": [ATTENTION if i in attends else LINEAR for i in range(layers)],
        "num_local_experts": pairs.get("expert_count", int, 0),
        "num_experts_per_tok": pairs.get("expert_used_count", int, 0),
        "shared_intermediate_size": pairs.get("expert_shared_feed_forward_length", int, config["intermediate_size"]),
        "mamba_expand": heads * head_dim // hidden,
        "mamba_n_heads": heads,
        "mamba_d_head": head_dim,
        "mamba_n_groups": groups,
        "mamba_d_state": state,
        "attention_bias": False,
        **_bamba_said(pairs, names),
    }


def nemotron_h(pairs: Pairs, names: Names, config: Config) -> dict[str, Any]:
    """A layer with heads of keys attends, one with a width is an MLP or has experts, and one with neither scans."""
    pairs.get("attention.layer_norm_rms_epsilon", float, 0.0)
    layers = config["num_hidden_layers"]
    attends, inner = set(_attending(pairs, layers)), pairs.each("feed_forward_length", layers)
    alone = ["moe" if f"blk.{i}.ffn_up_exps.weight" in names else "mlp" for i in range(layers)]
    kinds = [ATTENTION if i in attends else alone[i] if inner[i] else LINEAR for i in range(layers)]
    heads, head_dim, groups, state = _dual(pairs)
    return {
        "layer_types": kinds,
        "mamba_num_heads": heads,
        "mamba_head_dim": head_dim,
        "n_groups": groups,
        "ssm_state_size": state,
        **_mamba_said(pairs, names),
        "mlp_bias": _some(names, "ffn_up.bias"),
    }


def qwen3_next(pairs: Pairs, names: Names, config: Config) -> dict[str, Any]:
    """Layers with a decay are linear. Of text all sections of a rope turn by the same positions."""
    pairs.raw("rope.dimension_sections")
    layers, values = config["num_hidden_layers"], pairs.get("ssm.time_step_rank", int)
    pairs.get("full_attention_interval", int, 4)
    inner = pairs.get("ssm.inner_size", int)
    if not values or inner % values:
        raise ModelError(f"GGUF: {values} heads (ssm.time_step_rank) cannot share ssm.inner_size {inner}")
    return {
        "layer_types": [LINEAR if f"blk.{i}.ssm_a" in names else ATTENTION for i in range(layers)],
        "linear_num_value_heads": values,
        "linear_num_key_heads": pairs.get("ssm.group_count", int),
        "linear_value_head_dim": inner // values,
        "linear_key_head_dim": pairs.get("ssm.state_size", int),
        "linear_conv_kernel_dim": pairs.get("ssm.conv_kernel", int),
        "attention_bias": False,
    }


def _dual(pairs: Pairs) -> tuple[int, int, int, int]:
    """Heads of Mamba 2, their size, groups and states."""
    heads, inner = pairs.get("ssm.time_step_rank", int), pairs.get("ssm.inner_size", int)
    if not heads or inner % heads:
        raise ModelError(f"GGUF: {heads} heads (ssm.time_step_rank) cannot share ssm.inner_size {inner}")
    return heads, inner // heads, pairs.get("ssm.group_count", int), pairs.get("ssm.state_size", int)


def _mamba_said(pairs: Pairs, names: Names) -> dict[str, Any]:
    """Of convolutions and biases, as configs of Mamba and Nemotron-H call it."""
    return {
        "conv_kernel": pairs.get("ssm.conv_kernel", int),
        "use_bias": _some(names, "ssm_in.bias"),
        "use_conv_bias": _some(names, "ssm_conv1d.bias"),
    }


def _bamba_said(pairs: Pairs, names: Names) -> dict[str, Any]:
    """The same, as configs of hybrids call it."""
    return {
        "mamba_d_conv": pairs.get("ssm.conv_kernel", int),
        "mamba_proj_bias": _some(names, "ssm_in.bias"),
        "mamba_conv_bias": _some(names, "ssm_conv1d.bias"),
    }


def _attending(pairs: Pairs, layers: int) -> list[int]:
    """Layers that have heads of keys."""
    return [i for i, count in enumerate(pairs.each("attention.head_count_kv", layers)) if count]


def _evenly(chosen: Sequence[int], layers: int, what: str) -> tuple[int, int]:
    """Period and offset of some layers' numbers. Raises ModelError where they have none."""
    if not chosen:
        return layers + 1, layers
    period = chosen[1] - chosen[0] if len(chosen) > 1 else layers
    if [i for i in range(layers) if i % period == chosen[0]] != list(chosen):
        raise ModelError(f"GGUF: the layers that {what} ({', '.join(map(str, chosen))}) do not come evenly")
    return period, chosen[0]


def _some(names: Names, part: str) -> bool:
    """Whether any layer has a tensor of this name."""
    return any(name.endswith(f".{part}") for name in names)
