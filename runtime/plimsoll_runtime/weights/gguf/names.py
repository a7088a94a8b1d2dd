"""Transformers' names of tensors by those that GGUF files have."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

import gguf

SUFFIXES = (".weight", ".bias")
_GATE, _UP, _DOWN = "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"
PARTS: Mapping[str, tuple[str, ...]] = {
    "block_sparse_moe.input_linear.gate.weight": (f"{_GATE}.weight",),
    "block_sparse_moe.input_linear.up.weight": (f"{_UP}.weight",),
    "shared_mlp.input_linear.gate.weight": ("ffn_gate_shexp.weight", "ffn_gate.weight"),
    "shared_mlp.input_linear.up.weight": ("ffn_up_shexp.weight", "ffn_up.weight"),
    "shared_mlp.output_linear.weight": ("ffn_down_shexp.weight", "ffn_down.weight"),
    "mlp.experts.gate_up_proj.gate": (f"{_GATE}.weight",),
    "mlp.experts.gate_up_proj.up": (f"{_UP}.weight",),
    "mlp.experts.down_proj": (f"{_DOWN}.weight",),
    "mlp.experts.gate_up_proj.gate_bias": (f"{_GATE}.bias",),
    "mlp.experts.gate_up_proj.up_bias": (f"{_UP}.bias",),
    "mlp.experts.down_proj_bias": (f"{_DOWN}.bias",),
    "feed_forward.experts.w1.weight": (f"{_GATE}.weight",),
    "feed_forward.experts.w3.weight": (f"{_UP}.weight",),
    "feed_forward.experts.w2.weight": (f"{_DOWN}.weight",),
    "feed_forward.expert_bias": ("exp_probs_b.bias",),
    "mixer.experts.up_proj.weight": (f"{_UP}.weight",),
    "mixer.experts.down_proj.weight": (f"{_DOWN}.weight",),
    "router.scale": ("ffn_gate_inp.scale",),
    "router.per_expert_scale": (f"{_DOWN}.scale",),
    "linear_attn.in_proj_qkv.weight": ("attn_qkv.weight",),
    "linear_attn.in_proj_z.weight": ("attn_gate.weight",),
    "linear_attn.dt_bias": ("ssm_dt.bias",),
    "mamba.dt_bias": ("ssm_dt.bias",),
    "mixer.dt_bias": ("ssm_dt.bias",),
}
"""Tensors within a layer that the converter itself splits, joins or renames, and what a file may call each of them."""


def theirs_by_ours(arch: str, layers: int, wanted: Iterable[str], there: Collection[str]) -> dict[str, str]:
    """Ours, by the names of those tensors in the files that somebody wants."""
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, layers)
    found = {}
    for ours in wanted:
        theirs = next((each for each in _names(names, ours) if each in there), None)
        if theirs is not None:
            found[theirs] = ours
    return found


def _names(names: gguf.TensorNameMap, name: str) -> Iterator[str]:
    """What a tensor may be called, the likeliest first; what has no suffix in Transformers has one there, or none."""
    if (match := re.fullmatch(r"(?:model|backbone)\.layers\.(\d+)\.(.+)", name)) and match[2] in PARTS:
        yield from (f"blk.{match[1]}.{part}" for part in PARTS[match[2]])
    asked = name.replace("e_score_correction_bias", "e_score_correction.bias")
    for each in (asked, asked.removeprefix("transformer.")):
        if (found := names.get_name(each, SUFFIXES)) is not None:
            yield found
            yield f"{found}.weight"
