"""Config fields of recurrent and hybrid models from GGUF metadata: the type of each layer and its sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.gguf.fields import Pairs

Names = frozenset[str]
Config = Mapping[str, Any]
ATTENTION, LINEAR = "full_attention", "linear_attention"
BAMBA_FIELDS = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state")


def mamba(pairs: Pairs, names: Names, config: Config) -> dict[str, Any]:
    """Return Mamba's config fields. Falcon Mamba also normalises time steps, B and C, by norms without weights."""
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
    pairs.get("attention.head_count", int, 0)
    return {**_dual(pairs, "num_heads", "head_dim", "n_groups", "state_size"), **_mamba_said(pairs, names)}


def jamba(pairs: Pairs, names: Names, config: Config) -> dict[str, Any]:
    """Return Jamba's config fields. Attention layers and expert layers each occur with a fixed period."""
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    every, first = _evenly(_attending(pairs, layers), layers, "attend")
    sparse = [i for i in range(layers) if f"blk.{i}.ffn_gate_exps.weight" in names]
    period, offset = _evenly(sparse, layers, "have experts")
    inner = pairs.get("ssm.inner_size", int)
    if not hidden or inner % hidden:
        raise ModelError(f"GGUF: ssm.inner_size is {inner}; it must be a multiple of embedding_length {hidden}")
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
    """Return Falcon-H1's config fields. Its multipliers are folded into the weights of the file, and gates come before
    norms.
    """
    return {
        "mamba_d_ssm": pairs.get("ssm.inner_size", int),
        **_dual(pairs, *BAMBA_FIELDS),
        "mamba_rms_norm": _some(names, "ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "projectors_bias": _some(names, "ssm_out.bias"),
        **_bamba_said(pairs, names),
    }


def lfm2(pairs: Pairs, names: Names, config: Config) -> dict[str, Any]:
    """Return LFM2's config fields. Layers without key heads are convolutions. The MLP width is used as it is."""
    layers = config["num_hidden_layers"]
    attends = set(_attending(pairs, layers))
    return {
        "layer_types": [ATTENTION if i in attends else "conv" for i in range(layers)],
        "conv_L_cache": pairs.get("shortconv.l_cache", int),
        "conv_bias": _some(names, "shortconv.conv.bias"),
        "block_auto_adjust_ff_dim": False,
    }


def granite_hybrid(pairs: Pairs, names: Names, config: Config) -> dict[str, Any]:
    """Return the config fields of Granite hybrids.

    Raises ModelError for Bamba, which llama.cpp's converter writes as granitehybrid with a wrong order of rotated
    dimensions.
    """
    if pairs.get("rope.scaling.finetuned", bool, False):
        raise ModelError(
            "GGUF: granitehybrid.rope.scaling.finetuned = True is not supported: Bamba rotates half of each head, but "
            "the file orders queries for fully rotated heads; use the safetensors files"
        )
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    inner = pairs.get("ssm.inner_size", int)
    if not hidden or inner % hidden:
        raise ModelError(f"GGUF: ssm.inner_size is {inner}; it must be a multiple of {hidden}")
    attends = set(_attending(pairs, layers))
    return {
        "layer_types": [ATTENTION if i in attends else LINEAR for i in range(layers)],
        "num_local_experts": pairs.get("expert_count", int, 0),
        "num_experts_per_tok": pairs.get("expert_used_count", int, 0),
        "shared_intermediate_size": pairs.get("expert_shared_feed_forward_length", int, config["intermediate_size"]),
        "mamba_expand": inner // hidden,
        **_dual(pairs, *BAMBA_FIELDS),
        "attention_bias": False,
        **_bamba_said(pairs, names),
    }


def nemotron_h(pairs: Pairs, names: Names, config: Config) -> dict[str, Any]:
    """Return Nemotron-H's config fields.

    A layer with key heads is attention, one with an MLP width is an MLP or has experts, and the others are Mamba 2.
    """
    pairs.get("attention.layer_norm_rms_epsilon", float, 0.0)
    layers = config["num_hidden_layers"]
    attends, inner = set(_attending(pairs, layers)), pairs.each("feed_forward_length", layers)
    alone = ["moe" if f"blk.{i}.ffn_up_exps.weight" in names else "mlp" for i in range(layers)]
    kinds = [ATTENTION if i in attends else alone[i] if inner[i] else LINEAR for i in range(layers)]
    return {
        "layer_types": kinds,
        **_dual(pairs, "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size"),
        **_mamba_said(pairs, names),
        "mlp_bias": _some(names, "ffn_up.bias"),
    }


def qwen3_next(pairs: Pairs, names: Names, config: Config) -> dict[str, Any]:
    """Return Qwen3-Next's config fields. Layers with a decay (`ssm_a`) are linear attention.

    rope.dimension_sections is ignored: for text, all sections use the same positions.
    """
    pairs.raw("rope.dimension_sections")
    layers, values = config["num_hidden_layers"], pairs.get("ssm.time_step_rank", int)
    pairs.get("full_attention_interval", int, 4)
    inner = pairs.get("ssm.inner_size", int)
    if not values or inner % values:
        raise ModelError(f"GGUF: ssm.inner_size {inner} is not a multiple of the {values} heads (ssm.time_step_rank)")
    return {
        "layer_types": [LINEAR if f"blk.{i}.ssm_a" in names else ATTENTION for i in range(layers)],
        "linear_num_value_heads": values,
        "linear_num_key_heads": pairs.get("ssm.group_count", int),
        "linear_value_head_dim": inner // values,
        "linear_key_head_dim": pairs.get("ssm.state_size", int),
        "linear_conv_kernel_dim": pairs.get("ssm.conv_kernel", int),
        "attention_bias": False,
    }


def _dual(pairs: Pairs, heads_field: str, dim_field: str, groups_field: str, state_field: str) -> dict[str, int]:
    """Return the number of Mamba 2 heads, their size, groups and state size, under the given names of config fields."""
    heads, inner = pairs.get("ssm.time_step_rank", int), pairs.get("ssm.inner_size", int)
    if not heads or inner % heads:
        raise ModelError(f"GGUF: ssm.inner_size {inner} is not a multiple of the {heads} heads (ssm.time_step_rank)")
    return {
        heads_field: heads,
        dim_field: inner // heads,
        groups_field: pairs.get("ssm.group_count", int),
        state_field: pairs.get("ssm.state_size", int),
    }


def _mamba_said(pairs: Pairs, names: Names) -> dict[str, Any]:
    """Return the config fields of the convolution and of biases, by their names for Mamba and Nemotron-H."""
    return {
        "conv_kernel": pairs.get("ssm.conv_kernel", int),
        "use_bias": _some(names, "ssm_in.bias"),
        "use_conv_bias": _some(names, "ssm_conv1d.bias"),
    }


def _bamba_said(pairs: Pairs, names: Names) -> dict[str, Any]:
    """Return the config fields of the convolution and of biases, by their names for Jamba and other hybrids."""
    return {
        "mamba_d_conv": pairs.get("ssm.conv_kernel", int),
        "mamba_proj_bias": _some(names, "ssm_in.bias"),
        "mamba_conv_bias": _some(names, "ssm_conv1d.bias"),
    }


def _attending(pairs: Pairs, layers: int) -> list[int]:
    """Return the numbers of the layers that have key heads."""
    return [i for i, count in enumerate(pairs.each("attention.head_count_kv", layers)) if count]


def _evenly(chosen: Sequence[int], layers: int, what: str) -> tuple[int, int]:
    """Return period and offset of the `chosen` layer numbers; for none, values that match no layer.

    Raises ModelError if they are not evenly spaced.
    """
    if not chosen:
        return layers + 1, layers
    period = chosen[1] - chosen[0] if len(chosen) > 1 else layers
    if [i for i in range(layers) if i % period == chosen[0]] != list(chosen):
        raise ModelError(f"GGUF: the layers that {what} ({', '.join(map(str, chosen))}) are not evenly spaced")
    return period, chosen[0]


def _some(names: Names, part: str) -> bool:
    """Return whether any layer has a tensor with this name."""
    return any(name.endswith(f".{part}") for name in names)
