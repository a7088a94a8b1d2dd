"""Names and layouts of a family's tensors in its files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Tensors of a mixture within a layer. The defaults are Qwen2-MoE's.

    - `gate_up`, `down`: `{}` is an expert's number. Without it the files store all experts in one tensor: [experts,
      ...].
    - `gate_up`, `shared_gate_up`: two tensors, or one with the gate above the up projection.
    - `suffix`, `bias_suffix`: endings of these names; `transposed`: experts' matrices are stored [inputs, outputs].
    - `alternating`: rows of gate and up projection alternate.
    - `correction`: the name, with its ending, of the bias that is added to scores for the choice of experts: [experts],
      or [1, experts] if `correction_is_row`.
    - `shared_gate`: the gate of shared experts, [1, hidden], or [hidden] if `shared_gate_is_vector`.
    - `scales`: a factor for each expert; `narrowed`: projections of experts' inputs and results.
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
    """Tensors of latent attention within a layer: DeepSeek's.

    - `query`: queries from states; `query_down`, `query_norm`, `query_up`: queries of low rank.
    - `down`, `norm`: the cached vector; `up`: each head's key and value projection, one below the other.
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
    """Tensors of per-layer inputs: Gemma 3n's. `gate`, `up` and `after` are within a layer."""

    table: str = "model.embed_tokens_per_layer"
    projection: str = "model.per_layer_model_projection"
    norm: str = "model.per_layer_projection_norm"
    gate: str = "per_layer_input_gate"
    up: str = "per_layer_projection"
    after: str = "post_per_layer_input_norm"


GEMMA_INPUTS = TokenInputNames()


@dataclass(frozen=True, slots=True)
class StreamNames:
    """Tensors of streams of hidden states: Gemma 3n's. All except `spread` and `gather` are within a layer.

    - `spread`, `gather`: `{}` is a stream's number, from 0 for the second stream. Without it the files store all in one
      tensor.
    - `laurel`: the two matrices of a low-rank product, and its norm.
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
    """Norms of a mixture parallel to an MLP, within a layer: Gemma 4's.

    `routed`: before the router; `before`, `after`: around the mixture; `dense`: after the MLP.
    """

    routed: str = "router.scale"
    before: str = "pre_feedforward_layernorm_2.weight"
    after: str = "post_feedforward_layernorm_2.weight"
    dense: str = "post_feedforward_layernorm_1.weight"


GEMMA_BESIDE = BesideNames()


@dataclass(frozen=True, slots=True)
class Names:
    """Names of all tensors. The defaults are Llama's. Names within a layer follow `layer`, whose `{}` is its number.

    - `query_key_value`: three tensors, or one with queries, keys and values one below the other.
    - `interleaved`: the one tensor has, for each key head, its queries, its key and its value.
    - `shards`: the one tensor has this many parts (0: it is not divided), each with its share of queries, values and
      keys.
    - `gate_up`: two tensors, or one with the gate above the up projection. A plain MLP has only the last.
    - `recurrent`: prefix of a recurrent layer's tensors.
    - `scalar`: the name, with its ending, of the factor of a layer's states.
    - `norms`: before and after attention, before and after the MLP, if the family's layers have these.
    - `transposed`: matrices are stored [inputs, outputs], except embedding and head.
    - `ignored`: suffixes of tensors that are not read, because they are computed or unused.
    - `beyond`: prefixes of tensors that are not read, such as those of layers for multi-token prediction.
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
