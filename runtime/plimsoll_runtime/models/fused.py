"""The decoder on a CPU with our own kernels: a step is one call, not one call for each op of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from plimsoll_kernels.cpu.decoder import CpuDecoder, Layer
from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_kernels.cpu.library import kernels
from plimsoll_kernels.cpu.linear import PackedGatedLinear, PackedLinear
from plimsoll_kernels.cpu.records import KernelsRecord, LayerRecord
from plimsoll_kernels.cpu.step import PagedStep
from plimsoll_runtime.models.decoder import capped, rounded_scale
from plimsoll_runtime.models.rope import RopeTable
from plimsoll_runtime.models.spec import Attention, AttentionShape, DecoderSpec, RopeSpec
from plimsoll_runtime.models.weights import LayerWeights, LinearWeights, WeightReader

FIRST_POSITIONS = 2048


@runtime_checkable
class FusedStep(Attention, Protocol):
    """A step's attention that a fused decoder computes by itself, from `paged`."""

    paged: PagedStep


class FusedDecoder:
    """A loaded model, like `Decoder`; it attends by itself over the cache of the backend `cpu`."""

    def __init__(self, reader: WeightReader) -> None:
        found = kernels(reader.dtype)
        if found is None:
            raise ValueError(f"no CPU kernels for {reader.dtype} run here")
        spec = reader.spec
        self.spec = spec
        self.dtype = reader.dtype
        ropes = tuple(dict.fromkeys(spec.ropes))
        self._turns = _Turns(ropes)
        embedding, self._head = _ends(found, reader)
        self._logits = Buffer()
        layers = [
            _layer(found, spec, weights, attention_record(shape, rope=ropes.index(rope)))
            for shape, rope, weights in zip(spec.attention, spec.ropes, reader.layers(), strict=True)
        ]
        scale = rounded_scale(spec, reader.dtype)
        self._decoder = CpuDecoder(
            found,
            layers,
            embedding=embedding,
            embedding_scale=1.0 if scale is None else scale,
            final_norm=_norm(spec, reader.final_norm()),
            norm_eps=spec.norm_eps,
            inner=spec.intermediate_size,
            gelu=spec.activation == "gelu_tanh",
        )
        self.weight_bytes = reader.nbytes

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """token_ids and positions int64 [T] -> final hidden states [T, hidden], normed."""
        if not isinstance(attention, FusedStep):
            raise TypeError(f"a fused decoder needs a step of the backend cpu, not {type(attention).__name__}")
        turns = self._turns.below(attention.paged.longest)
        return self._decoder(token_ids, positions, turns, attention.paged)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, hidden] -> float32 [R, vocab], which the next call overwrites: fresh pages each step cost more."""
        return capped(self.spec, self._head(hidden, self._logits))

    def step_bytes(self, rows: int, logits_rows: int, longest: int) -> int:
        """See execution.workspace.KnowsStepBytes."""
        logits = 4 * logits_rows * self.spec.vocab_size
        copies = 0 if self.spec.final_softcap is None else 2 * logits
        return self._decoder.step_bytes(rows) + Buffer.nbytes(logits) + copies + self._turns.nbytes(longest)

    def take_seconds(self) -> dict[str, float]:
        """See models.op_times.TimesOps: what each op took since the last call."""
        return self._decoder.take_seconds()


class _Turns:
    """Cosines and sines of each rope for all positions so far, twice as many whenever a sequence gets longer."""

    def __init__(self, ropes: Sequence[RopeSpec]) -> None:
        self._ropes = ropes
        self._tables = [RopeTable(rope, torch.device("cpu")) for rope in ropes]
        self._turns: list[Tensor] = []
        self._length = 0

    def nbytes(self, longest: int) -> int:
        """What the tables take for sequences of at most so many tokens."""
        return sum(4 * _positions(longest) * rope.head_dim for rope in self._ropes)

    def below(self, length: int) -> Sequence[Tensor]:
        """For each rope float32 [at least `length`, 2, head_dim / 2]."""
        if length > self._length:
            self._length = _positions(length)
            positions = torch.arange(self._length)
            self._turns = [torch.stack(table(positions, torch.float32), dim=1) for table in self._tables]
        return self._turns


def _positions(length: int) -> int:
    """Positions in the tables once a sequence is so long."""
    return max(FIRST_POSITIONS, 1 << (length - 1).bit_length())


def attention_record(shape: AttentionShape, *, rope: int) -> LayerRecord:
    """The attention of a layer as the kernels read it; `rope` is the index of its table."""
    return LayerRecord(
        rope=rope,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        window=shape.window or 0,
        scale=shape.scale,
        softcap=shape.softcap or 0.0,
    )


def _ends(found: KernelsRecord, reader: WeightReader) -> tuple[Tensor | PackedLinear, PackedLinear]:
    """The embedding and the output layer, which are one where the model ties them."""
    tied = reader.spec.tied_embeddings
    embedding = reader.embedding(keep=not tied)
    head = PackedLinear(found, reader.head(embedding))
    return (head if tied else embedding), head


def _layer(found: KernelsRecord, spec: DecoderSpec, weights: LayerWeights, record: LayerRecord) -> Layer:
    norms = [_norm(spec, norm) for norm in weights.norms]
    query_norm, key_norm = (None, None) if weights.head_norms is None else (_norm(spec, n) for n in weights.head_norms)
    return Layer.of(
        query_key_value=_linear(found, weights.query_key_value),
        output=_linear(found, weights.output),
        gate_up=PackedGatedLinear(found, weights.gate.weight, weights.up.weight, weights.gate_up_bias),
        down=_linear(found, weights.down),
        attention_norm=norms[0],
        attention_post_norm=norms[1] if spec.post_norms else None,
        mlp_norm=norms[2] if spec.post_norms else norms[1],
        mlp_post_norm=norms[3] if spec.post_norms else None,
        query_norm=query_norm,
        key_norm=key_norm,
        shape=record,
    )


def _linear(found: KernelsRecord, weights: LinearWeights) -> PackedLinear:
    return PackedLinear(found, weights.weight, weights.bias)


def _norm(spec: DecoderSpec, weight: Tensor) -> Tensor:
    return weight.float() + spec.norm_offset
