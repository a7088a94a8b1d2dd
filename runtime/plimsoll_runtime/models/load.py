"""From a model's files to a decoder: every tensor accounted for, read once, straight into its packed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.layer import AttentionBlock, DecoderLayer, GatedMlp
from plimsoll_runtime.models.linear import Linear
from plimsoll_runtime.models.norm import QkNorm, RmsNorm
from plimsoll_runtime.models.registry import describe
from plimsoll_runtime.models.spec import DecoderSpec
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.tensors import TensorSource, open_tensors

Progress = Callable[[str, float], None]
STAGE = "load weights"
EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_DERIVED = ("rotary_emb.inv_freq",)
_NAMED = 5
"""How many tensors an error lists."""


def load_decoder(
    files: ModelFiles, dtype: torch.dtype, *, device: torch.device, progress: Progress | None = None
) -> Decoder:
    """Load a model's weights as its spec says.

    Raises ModelError when a tensor is missing, unexpected, of another shape, or cannot be read.
    """
    spec = describe(files.config)
    source = open_tensors(files)
    check_tensors(spec, source.shapes)
    return _Loader(spec, source, dtype, device, progress or _silent).decoder()


def expected_tensors(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that a spec needs, with its shape."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    tensors: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not spec.tied_embeddings:
        tensors[HEAD] = (spec.vocab_size, hidden)
    for i, shape in enumerate(spec.attention):
        query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        linears = {
            "self_attn.q_proj": (query, hidden, spec.qkv_bias),
            "self_attn.k_proj": (key, hidden, spec.qkv_bias),
            "self_attn.v_proj": (key, hidden, spec.qkv_bias),
            "self_attn.o_proj": (hidden, query, spec.output_bias),
            "mlp.gate_proj": (inner, hidden, spec.mlp_bias),
            "mlp.up_proj": (inner, hidden, spec.mlp_bias),
            "mlp.down_proj": (hidden, inner, spec.mlp_bias),
        }
        prefix = f"model.layers.{i}"
        for name, (rows, columns, bias) in linears.items():
            tensors[f"{prefix}.{name}.weight"] = (rows, columns)
            if bias:
                tensors[f"{prefix}.{name}.bias"] = (rows,)
        tensors |= {f"{prefix}.{name}.weight": (hidden,) for name in _norms(spec)}
        if spec.qk_norm:
            tensors |= {f"{prefix}.self_attn.{x}_norm.weight": (shape.head_dim,) for x in ("q", "k")}
    return tensors


def check_tensors(spec: DecoderSpec, found: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse missing, unexpected and mis-shaped tensors by name.

    Buffers that are computed anyway are ignored, and the copy of tied embeddings that some files carry.
    """
    expected = expected_tensors(spec)
    ignored = {HEAD} if spec.tied_embeddings else set()
    unexpected = [n for n in found if n not in expected and n not in ignored and not n.endswith(_DERIVED)]
    wrong = [f"{n} {list(found[n])} instead of {list(s)}" for n, s in expected.items() if n in found and found[n] != s]
    missing = [n for n in expected if n not in found]
    for problem, names in (
        ("lack", missing),
        ("have unexpected tensors:", unexpected),
        ("have a wrong shape:", wrong),
    ):
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise ModelError(f"{spec.architecture}: the weights {problem} {', '.join(names[:_NAMED])}{more}")


def _norms(spec: DecoderSpec) -> tuple[str, ...]:
    if spec.post_norms:
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        return tuple(f"{name}_layernorm" for name in names)
    return ("input_layernorm", "post_attention_layernorm")


class _Loader:
    """Builds the decoder layer by layer, so that never more than one layer exists twice."""

    def __init__(
        self, spec: DecoderSpec, source: TensorSource, dtype: torch.dtype, device: torch.device, progress: Progress
    ) -> None:
        self._spec = spec
        self._source = source
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._bytes = 0

    def decoder(self) -> Decoder:
        spec = self._spec
        self._progress(STAGE, 0.0)
        embedding = self._read(EMBEDDING)
        head = Linear(embedding if spec.tied_embeddings else self._read(HEAD))
        layers = []
        for index in range(spec.num_layers):
            layers.append(self._layer(index))
            self._progress(STAGE, (index + 1) / spec.num_layers)
        return Decoder(spec, embedding, layers, self._norm(FINAL_NORM), head, self._bytes)

    def _layer(self, index: int) -> DecoderLayer:
        spec, prefix = self._spec, f"model.layers.{index}"
        shape = spec.attention[index]
        norms = [self._norm(f"{prefix}.{name}.weight") for name in _norms(spec)]
        qk_norm = None
        if spec.qk_norm:
            query, key = (self._read(f"{prefix}.self_attn.{x}_norm.weight") for x in ("q", "k"))
            qk_norm = QkNorm(
                query, key, heads=shape.heads, kv_heads=shape.kv_heads, eps=spec.norm_eps, offset=spec.norm_offset
            )
        attention = AttentionBlock(
            shape,
            self._linear(spec.qkv_bias, *(f"{prefix}.self_attn.{x}_proj" for x in ("q", "k", "v"))),
            self._linear(spec.output_bias, f"{prefix}.self_attn.o_proj"),
            qk_norm,
        )
        mlp = GatedMlp(
            self._linear(spec.mlp_bias, f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj"),
            self._linear(spec.mlp_bias, f"{prefix}.mlp.down_proj"),
            spec.activation,
        )
        if not spec.post_norms:
            return DecoderLayer(attention, mlp, attention_norm=norms[0], mlp_norm=norms[1])
        return DecoderLayer(
            attention,
            mlp,
            attention_norm=norms[0],
            attention_post_norm=norms[1],
            mlp_norm=norms[2],
            mlp_post_norm=norms[3],
        )

    def _linear(self, biased: bool, *names: str) -> Linear:
        """One product for several weights that read the same input."""
        weight = torch.cat([self._read(f"{name}.weight") for name in names])
        bias = torch.cat([self._read(f"{name}.bias") for name in names]) if biased else None
        return Linear(weight, bias)

    def _norm(self, name: str) -> RmsNorm:
        return RmsNorm(self._read(name), self._spec.norm_eps, offset=self._spec.norm_offset)

    def _read(self, name: str) -> Tensor:
        tensor = self._source.read(name, self._dtype).to(self._device)
        self._bytes += tensor.nbytes
        return tensor


def _silent(stage: str, fraction: float) -> None:
    """Nobody asked to see progress."""
