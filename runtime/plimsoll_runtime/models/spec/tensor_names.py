"""What a family's files call the tensors, and how some of them are laid out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Tensors of a mixture, within a layer. Qwen2-MoE's, where a family says nothing else.

    - `gate_up`, `down`: `{}` is an expert's number. Without it the files have all experts in one: [experts, ...].
    - `gate_up`, `shared_gate_up`: two tensors, or one that has the gate above the other.
    - `suffix`, `bias_suffix`: what follows these names; `transposed`: experts' matrices are stored [inputs, outputs].
    - `alternating`: one that has the gate and the other row by row in turns.
    - `correction`: the whole name of the bias, which is [experts], or [1, experts] where `correction_is_row`.
    - `shared_gate`: of what the shared experts give, [1, hidden], or [hidden] where `shared_gate_is_vector`.
    - `scales`: a number for each expert; `narrowed`: to what experts read, and back.
    """

    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"
    correction_is_row: bool = False
    gate_up: tuple[str, ...] = ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj")
    down: str = "mlp.experts.{}.down_proj"
    suffix: str = ".weight"
    bias_suffix: str = ".bias"
    transposed: bool = False
    alternating: bool = False
    shared_gate_up: tuple[str, ...] = ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj")
    shared_down: str = "mlp.shared_expert.down_proj"
    shared_gate: str = "mlp.shared_expert_gate"
    shared_gate_is_vector: bool = False
    scales: str = ""
    narrowed: tuple[str, str] = ("", "")


QWEN2_MOE = ExpertNames()


@dataclass(frozen=True, slots=True)
class LatentNames:
    """Tensors of latent attention, within a layer: DeepSeek's.

    - `query`: of queries that are made of the states; `query_down`, `query_norm`, `query_up`: of those that are not.
    - `down`, `norm`: the vector that is kept; `up`: for each head what makes its key of it, then its value.
    """

    query: str = "self_attn.q_proj"
    query_down: str = "self_attn.q_a_proj"
    query_norm: str = "self_attn.q_a_layernorm"
    query_up: str = "self_attn.q_b_proj"
    down: str = "self_attn.kv_a_proj_with_mqa"
    norm: str = "self_attn.kv_a_layernorm"
    up: str = "self_attn.kv_b_proj"


DEEPSEEK = LatentNames()


@dataclass(frozen=True, slots=True)
class TokenInputNames:
    """Tensors of tokens' inputs to layers: Gemma 3n's. `gate`, `up` and `after` are within a layer."""

    table: str = "model.embed_tokens_per_layer"
    projection: str = "model.per_layer_model_projection"
    norm: str = "model.per_layer_projection_norm"
    gate: str = "per_layer_input_gate"
    up: str = "per_layer_projection"
    after: str = "post_per_layer_input_norm"


GEMMA_INPUTS = TokenInputNames()


@dataclass(frozen=True, slots=True)
class StreamNames:
    """Tensors of streams of hidden states: Gemma 3n's. All but `spread` and `gather` are within a layer.

    - `spread`, `gather`: `{}` is a stream's number behind the first. Without it the files have all in one.
    - `laurel`: a narrow product's two parts and its norm.
    """

    spread: str = "model.altup_projections.{}"
    gather: str = "model.altup_unembed_projections.{}"
    prediction: str = "altup.prediction_coefs"
    correction: str = "altup.correction_coefs"
    scale: str = "altup.correct_output_scale"
    router: str = "altup.modality_router"
    norm: str = "altup.router_norm"
    laurel: tuple[str, str, str] = ("laurel.linear_left", "laurel.linear_right", "laurel.post_laurel_norm")


GEMMA_STREAMS = StreamNames()


@dataclass(frozen=True, slots=True)
class BesideNames:
    """Norms of a mixture beside an MLP, within a layer: Gemma 4's.

    `routed`: of what the router reads; `before`, `after`: around the mixture; `dense`: after the MLP.
    """

    routed: str = "router.scale"
    before: str = "pre_feedforward_layernorm_2.weight"
    after: str = "post_feedforward_layernorm_2.weight"
    dense: str = "post_feedforward_layernorm_1.weight"


GEMMA_BESIDE = BesideNames()


@dataclass(frozen=True, slots=True)
class Names:
    """Llama's, where a family says nothing else. Names within a layer follow `layer`, whose `{}` is its number.

    - `query_key_value`: three tensors, or one that has queries, keys and values one below the other.
    - `interleaved`: that one has them head by head instead: for each key head its queries, its key and its value.
    - `shards`: that one has so many parts, each with its share of queries, of values and of keys.
    - `gate_up`: two tensors, or one that has the gate above the other. A plain MLP has only the last of them.
    - `recurrent`: what the names of a recurrent layer's tensors begin with.
    - `scalar`: the whole name of the number that a layer's states are multiplied by.
    - `norms`: before and after attention, before and after the MLP. A family has a norm where its layers have one.
    - `transposed`: matrices are stored [inputs, outputs], but for the embedding and the head.
    - `ignored`: tensors whose names end so are not read: what they hold is computed anyway, or by nobody.
    - `beyond`: tensors whose names begin so are not read: layers that guess further tokens.
    """

    embedding: str = "model.embed_tokens"
    positions: str = ""
    texts: str = ""
    embedding_norm: str = ""
    layer: str = "model.layers.{}"
    query_key_value: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    interleaved: bool = False
    shards: int = 0
    output: str = "self_attn.o_proj"
    latent: LatentNames = DEEPSEEK
    head_norms: tuple[str, str] = ("self_attn.q_norm", "self_attn.k_norm")
    sinks: str = "self_attn.sinks"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    experts: ExpertNames = QWEN2_MOE
    beside: BesideNames = GEMMA_BESIDE
    inputs: TokenInputNames = GEMMA_INPUTS
    streams: StreamNames = GEMMA_STREAMS
    scalar: str = "layer_scalar"
    recurrent: str = "mixer"
    norms: tuple[str, str, str, str] = ("input_layernorm", "", "post_attention_layernorm", "")
    final_norm: str = "model.norm"
    head: str = "lm_head"
    transposed: bool = False
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq",)
    beyond: tuple[str, ...] = ()


LLAMA = Names()
