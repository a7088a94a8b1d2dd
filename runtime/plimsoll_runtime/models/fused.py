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
from plimsoll_runtime.models.attention import Attention
from plimsoll_runtime.models.fusable import FusedLayer, FusedProgram, fused_program
from plimsoll_runtime.models.ops.embed import rounded
from plimsoll_runtime.models.ops.normalise import Normalise
from plimsoll_runtime.models.ops.product import Product
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.rope import RopeTable
from plimsoll_runtime.models.spec.attention import AttentionShape
from plimsoll_runtime.models.spec.rope import RopeSpec
from plimsoll_runtime.models.weights import WeightReader

FIRST_POSITIONS = 2048


@runtime_checkable
class FusedStep(Attention, Protocol):
    """A step's attention that a fused decoder computes by itself, from `paged`."""

    paged: PagedStep


class FusedDecoder:
    """A loaded model, like `Decoder`; it attends by itself over the cache of the backend `cpu`.

    All that it keeps of its weights lies in `places`, which it takes in the order of the layers.
    """

    def __init__(self, program: Program, reader: WeightReader, places: Places = OWN) -> None:
        """Raises UnfusableError for a program that the kernels do not have."""
        found = kernels(reader.dtype)
        if found is None:
            raise ValueError(f"no CPU kernels for {reader.dtype} run here")
        fused = fused_program(program)
        self.program = program
        self.dtype = reader.dtype
        self._turns = _Turns(program.ropes)
        parts = _Parts(found, reader, places)
        embedding, self._head = parts.ends(program)
        self._logits = Buffer()
        scale = fused.embed.scale
        self._decoder = CpuDecoder(
            found,
            parts.layers(fused, program.ropes),
            embedding=embedding,
            embedding_scale=1.0 if scale is None else rounded(scale, reader.dtype),
            final_norm=parts.norm(fused.final_norm),
            norm_eps=fused.final_norm.norm.eps,
            inner=fused.first.gate_up.outputs,
            gelu=fused.first.gate_up.activation == "gelu_tanh",
        )
        self.weight_bytes = reader.nbytes

    @property
    def outline(self) -> Program:
        """See Decoder."""
        return self.program

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """token_ids and positions int64 [T] -> final hidden states [T, hidden], normed."""
        if not isinstance(attention, FusedStep):
            raise TypeError(f"a fused decoder needs a step of the backend cpu, not {type(attention).__name__}")
        turns = self._turns.below(attention.paged.longest)
        return self._decoder(token_ids, positions, turns, attention.paged)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, hidden] -> float32 [R, vocab], which the next call overwrites: fresh pages each step cost more."""
        return self.program.head.finished(self._head(hidden, self._logits))

    def step_bytes(self, rows: int, logits_rows: int, longest: int) -> int:
        """See execution.workspace.KnowsStepBytes."""
        logits = 4 * logits_rows * self.program.facts.vocab_size
        copies = self.program.head.copies() * logits
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

    def __init__(self, found: KernelsRecord, reader: WeightReader, places: Places) -> None:
        self._found = found
        self._reader = reader
        self._places = places

    def ends(self, program: Program) -> tuple[Tensor | PackedLinear, PackedLinear]:
        """The embedding and the output layer, which are one where the model ties them."""
        embed, head = program.ops[0].weights()[0], program.head
        bias = None if head.bias is None else self._reader.read(head.bias)
        if head.head.tied:
            tied = PackedLinear(self._found, self._reader.read(embed), bias, self._places)
            return tied, tied
        embedding = self._places.keep(self._reader.read(embed, keep=not self._places.copies))
        return embedding, PackedLinear(self._found, self._reader.read(head.weight), bias, self._places)

    def layers(self, program: FusedProgram, ropes: Sequence[RopeSpec]) -> list[Layer]:
        """All of them, in order."""
        found = []
        for number, layer in enumerate(program.layers, 1):
            record = attention_record(layer.attend.shape, rope=ropes.index(layer.rotate.rope))
            found.append(self._layer(layer, record))
            self._reader.done(number / len(program.layers))
        return found

    def _layer(self, layer: FusedLayer, record: LayerRecord) -> Layer:
        """A layer whose attention is described."""
        heads, gated = layer.head_norm, layer.gate_up
        gate, up = self._gate_up(gated.parts)
        bias = self._reader.joined(gated.biases) if gated.biases else None
        return Layer.of(
            query_key_value=self._linear(layer.query_key_value),
            output=self._linear(layer.output),
            gate_up=PackedGatedLinear(self._found, gate, up, bias, self._places),
            down=self._linear(layer.down),
            attention_norm=self.norm(layer.attention_norm),
            attention_post_norm=self._norm_if(layer.attention_post_norm),
            mlp_norm=self.norm(layer.mlp_norm),
            mlp_post_norm=self._norm_if(layer.mlp_post_norm),
            query_norm=None if heads is None else self._scale(heads.query, heads.norm.norm.offset),
            key_norm=None if heads is None else self._scale(heads.key, heads.norm.norm.offset),
            shape=record,
        )

    def norm(self, op: Normalise) -> Tensor:
        """With the offset that is added to it."""
        assert op.weight is not None
        return self._scale(op.weight, op.norm.offset)

    def _norm_if(self, op: Normalise | None) -> Tensor | None:
        return None if op is None else self.norm(op)

    def _scale(self, weight: Weight, offset: float) -> Tensor:
        return self._places.keep(self._reader.read(weight).float() + offset)

    def _gate_up(self, parts: Sequence[Weight]) -> Sequence[Tensor]:
        """The gate and what it opens, which may be stored as one."""
        if len(parts) == 1:
            return self._reader.read(parts[0]).chunk(2)
        return [self._reader.read(part) for part in parts]

    def _linear(self, op: Product) -> PackedLinear:
        bias = self._reader.joined(op.biases) if op.biases else None
        return PackedLinear(self._found, self._reader.joined(op.parts), bias, self._places)
