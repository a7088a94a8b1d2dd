"""What a family's files call the tensors, and how some of them are laid out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """Llama's, where a family says nothing else. Names within a layer follow `layer`, whose `{}` is its number.

    - `query_key_value`: three tensors, or one that has queries, keys and values one below the other.
    - `interleaved`: that one has them head by head instead: for each key head its queries, its key and its value.
    - `gate_up`: two tensors, or one that has the gate above the other. A plain MLP has only the last of them.
    - `norms`: before and after attention, before and after the MLP. A family has a norm where its layers have one.
    - `transposed`: matrices are stored [inputs, outputs], but for the embedding and the head.
    - `ignored`: tensors whose names end so are not read: what they hold is computed anyway.
    """

    embedding: str = "model.embed_tokens"
    positions: str = ""
    embedding_norm: str = ""
    layer: str = "model.layers.{}"
    query_key_value: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    interleaved: bool = False
    output: str = "self_attn.o_proj"
    head_norms: tuple[str, str] = ("self_attn.q_norm", "self_attn.k_norm")
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    norms: tuple[str, str, str, str] = ("input_layernorm", "", "post_attention_layernorm", "")
    final_norm: str = "model.norm"
    head: str = "lm_head"
    transposed: bool = False
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq",)


LLAMA = Names()
