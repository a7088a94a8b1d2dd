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
from plimsoll_kernels.cpu.places import OWN, Places
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
    """A loaded model, like `Decoder`; it attends by itself over the cache of the backend `cpu`.

    All that it keeps of its weights lies in `places`, which it takes in the order of the layers.
    """

    def __init__(self, reader: WeightReader, places: Places = OWN) -> None:
        found = kernels(reader.dtype)
        if found is None:
            raise ValueError(f"no CPU kernels for {reader.dtype} run here")
        spec = reader.spec
        self.spec = spec
        self.dtype = reader.dtype
        ropes = tuple(dict.fromkeys(spec.ropes))
        self._turns = _Turns(ropes)
        parts = _Parts(found, spec, places)
        embedding, self._head = parts.ends(reader)
        self._logits = Buffer()
        layers = [
            parts.layer(weights, attention_record(shape, rope=ropes.index(rope)))
            for shape, rope, weights in zip(spec.attention, spec.ropes, reader.layers(), strict=True)
        ]
        scale = rounded_scale(spec, reader.dtype)
        self._decoder = CpuDecoder(
            found,
            layers,
            embedding=embedding,
            embedding_scale=1.0 if scale is None else scale,
            final_norm=parts.norm(reader.final_norm()),
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


class _Parts:
    """Makes what the kernels read of weights."""

    def __init__(self, found: KernelsRecord, spec: DecoderSpec, places: Places) -> None:
        self._found = found
        self._spec = spec
        self._places = places

    def ends(self, reader: WeightReader) -> tuple[Tensor | PackedLinear, PackedLinear]:
        """The embedding and the output layer, which are one where the model ties them."""
        tied = self._spec.tied_embeddings
        embedding = reader.embedding(keep=not tied and not self._places.copies)
        if not tied:
            embedding = self._places.keep(embedding)
        head = PackedLinear(self._found, reader.head(embedding), places=self._places)
        return (head if tied else embedding), head

    def layer(self, weights: LayerWeights, record: LayerRecord) -> Layer:
        """A layer whose attention is described."""
        norms = [self.norm(norm) for norm in weights.norms]
        of_heads = (None, None) if weights.head_norms is None else tuple(map(self.norm, weights.head_norms))
        gate_up = (weights.gate.weight, weights.up.weight, weights.gate_up_bias)
        return Layer.of(
            query_key_value=self._linear(weights.query_key_value),
            output=self._linear(weights.output),
            gate_up=PackedGatedLinear(self._found, *gate_up, places=self._places),
            down=self._linear(weights.down),
            attention_norm=norms[0],
            attention_post_norm=norms[1] if self._spec.post_norms else None,
            mlp_norm=norms[2] if self._spec.post_norms else norms[1],
            mlp_post_norm=norms[3] if self._spec.post_norms else None,
            query_norm=of_heads[0],
            key_norm=of_heads[1],
            shape=record,
        )

    def norm(self, weight: Tensor) -> Tensor:
        """With the offset that the spec adds."""
        return self._places.keep(weight.float() + self._spec.norm_offset)

    def _linear(self, weights: LinearWeights) -> PackedLinear:
        return PackedLinear(self._found, weights.weight, weights.bias, self._places)
