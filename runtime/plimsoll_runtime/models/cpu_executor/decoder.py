"""The decoder on a CPU with our kernels: one C++ call for each step, instead of one for each op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from plimsoll_kernels.cpu.decoder import CpuDecoder
from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_kernels.cpu.library import required
from plimsoll_kernels.cpu.linear import PackedLinear
from plimsoll_kernels.cpu.places import OWN, Places
from plimsoll_kernels.cpu.records import KernelsRecord, OpRecord, PlaceRecord, Timed
from plimsoll_kernels.cpu.step import SUB_BLOCK, PagedStep
from plimsoll_runtime.models.cpu_executor.lowering import lowered_program
from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.layers.collectives import Collectives
from plimsoll_runtime.models.layers.rope import RopeTable
from plimsoll_runtime.models.layers.states import States
from plimsoll_runtime.models.ops.cost import FLOAT32
from plimsoll_runtime.models.ops.cpu_weights import CpuWeights
from plimsoll_runtime.models.ops.logits import NoLogits
from plimsoll_runtime.models.ops.pooling_head import PooledHead
from plimsoll_runtime.models.ops.reduce import Reduce
from plimsoll_runtime.models.ops.stage import Receive, Send
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.spec.attention import RopeSpec
from plimsoll_runtime.models.weight_reader import WeightReader

Head = Callable[[Tensor], Tensor]
"""Computes logits of hidden states or, in a pooling model, the result of pooled vectors."""


def read_head(
    kernels: KernelsRecord, reader: WeightReader, places: Places, program: Program
) -> tuple[Head, Tensor | PackedLinear]:
    """Return the head and the embedding. If the embedding is also the output matrix, the second value is the packed
    output layer; of a later stage of a pipeline, it is empty or not used.
    """
    head, [embed, *_] = program.head, (*program.ops[0].weights(), None)
    if isinstance(head, PooledHead):
        embedding = _table(embed, reader, places)
        return head.compiled(_Kept(reader, places)), embedding
    if isinstance(head, NoLogits):
        return head.compiled(reader), _table(embed, reader, places)
    bias = None if head.bias is None else reader.read(head.bias)
    table = None if head.head.tied else _table(embed, reader, places)
    output = PackedLinear(kernels, reader.read(head.weight), bias, places)
    reader.forget(head.weight)
    buffer, finished = Buffer(), head.finished
    return lambda hidden: finished(output(hidden, buffer)), output if table is None else table


def _table(embed: Weight | None, reader: WeightReader, places: Places) -> Tensor:
    return torch.empty(0) if embed is None else places.keep(reader.read(embed, keep=not places.copies))


class _Kept:
    """Reads weights and stores them in `places` unchanged."""

    def __init__(self, reader: WeightReader, places: Places) -> None:
        self._reader = reader
        self._places = places
        self.device = reader.device
        self.dtype = reader.dtype

    def read(self, weight: Weight, *, keep: bool = False) -> Tensor:
        return self._places.keep(self._reader.read(weight, keep=keep))

    def joined(self, weights: Sequence[Weight]) -> Tensor:
        return torch.cat([self.read(weight) for weight in weights])


FIRST_POSITIONS = 2048


class FusedStep(Attention, Protocol):
    """Attention of a step that the CPU executor computes itself from `paged`, instead of calling it."""

    paged: PagedStep


class FusedStates(States, Protocol):
    """The recurrent states of a step's sequences: one tensor for each state, with each sequence's row in `slots`.

    The CPU executor updates these rows in place.
    """

    tensors: Sequence[Tensor]
    slots: Sequence[int]


class CpuExecutor:
    """A Decoder on the CPU, with its own attention over the cache of the backend `cpu`.

    Its weights are in `places`, in the order of the layers.
    """

    def __init__(
        self,
        program: Program,
        reader: WeightReader,
        places: Places = OWN,
        collectives: Collectives | None = None,
    ) -> None:
        """`collectives`: those of the program's group, if it is the program of one rank of several.

        Raises UnsupportedOpError if the kernels lack an op of the program.
        """
        found = required(reader.dtype)
        lowered = lowered_program(program)
        self.outline = self.program = program
        self.dtype = reader.dtype
        self._turns = _Turns(program.ropes)
        self._head, embedding = read_head(found, reader, places, program)
        exchange = None if collectives is None else collectives.exchange
        weights = CpuWeights(found, reader, places, reader.dtype, embedding, exchange)
        self._collectives = collectives
        self._sums = sum(isinstance(op, Reduce) for op in program.ops)
        ops = []
        for number, op in enumerate(lowered.ops, 1):
            ops.append(OpRecord.of(op.record(weights), Timed[op.kind.name]))
            reader.done(number / len(lowered.ops))
        self._decoder = CpuDecoder(
            found,
            ops,
            [PlaceRecord(**place._asdict()) for place in lowered.places],
            width=program.facts.hidden_size,
            dtype=reader.dtype,
            kept=weights.kept,
        )
        first, last = program.ops[0], program.ops[-1]
        self._receives = first.columns if isinstance(first, Receive) else 0
        self._sends = last.columns if isinstance(last, Send) else 0
        self.weight_bytes = program.weight_bytes(reader.dtype)

    def __call__(
        self, token_ids: Tensor, positions: Tensor, attention: Attention, states: States | None = None
    ) -> Tensor:
        """Compute final hidden states [T, hidden], normalised, from token_ids and positions, both int64 [T]."""
        # isinstance() of the protocol would take ten calls a step.
        paged = getattr(attention, "paged", None)
        if not isinstance(paged, PagedStep):
            raise TypeError(f"the CPU executor needs attention of the backend cpu, not {type(attention).__name__}")
        if self.program.facts.states:
            held: FusedStates | None = states  # type: ignore[assignment]
            if held is None:
                raise ValueError("a decoder with recurrent layers is called without the states of its sequences")
            paged.hold(held.tensors, held.slots)
        turns = self._turns.below(paged.longest)
        if self._collectives is None:
            return self._decoder(token_ids, positions, turns, paged)
        return self._of_rank(self._collectives, token_ids, positions, turns, paged)

    def _of_rank(
        self,
        collectives: Collectives,
        token_ids: Tensor,
        positions: Tensor,
        turns: Sequence[Tensor],
        paged: PagedStep,
    ) -> Tensor:
        """Compute the step of a rank. Only the last stage of a pipeline has a result; the others return an empty
        tensor.
        """
        rows, incoming = token_ids.numel(), None
        if self._receives:
            incoming = collectives.receive(rows, self._receives, torch.float32, token_ids.device)
        outgoing = torch.empty(rows, self._sends) if self._sends else None
        result = self._decoder(token_ids, positions, turns, paged, incoming, outgoing)
        collectives.summed(self._sums)
        if outgoing is not None:
            collectives.send(outgoing)
        return result

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [R, vocab] of hidden [R, hidden]; of a pooling model, its vectors or scores.

        The next call overwrites logits: allocating new pages in each step would cost more.
        """
        return self._head(hidden)

    def step_bytes(self, rows: int, logits_rows: int, longest: int) -> int:
        """Return the peak bytes of activations, logits and rotary tables in a step with `rows` rows.

        `logits_rows`: the rows whose logits are computed at once; in a pooling model, the number of prompts. `longest`:
        the tokens of the longest sequence.
        """
        passed = FLOAT32 * rows * (self._receives + self._sends)
        head, own = self.program.head, self._decoder.step_bytes(rows) + self._turns.nbytes(longest) + passed
        if isinstance(head, PooledHead):
            # `logits_rows` is the largest number of prompts; the last block of each may be partly filled.
            kept = max((shape.cached_width for shape in self.program.facts.whole), default=0) * self.dtype.itemsize
            return own + logits_rows * head.row_bytes() + kept * (rows + logits_rows * SUB_BLOCK)
        if isinstance(head, NoLogits):
            return own
        logits = 4 * logits_rows * head.width
        return own + Buffer.nbytes(logits) + head.copies() * logits

    def take_seconds(self) -> dict[str, float]:
        """Return the seconds by kind of op since the last call (see models.ops.cost.TimesOps)."""
        return self._decoder.take_seconds()


class _Turns:
    """Cosines and sines of each rope by position. The tables grow to the next power of two if a sequence is longer."""

    def __init__(self, ropes: Sequence[RopeSpec]) -> None:
        self._ropes = ropes
        self._tables = [RopeTable(rope, torch.device("cpu")) for rope in ropes]
        self._turns: list[Tensor] = []
        self._length = 0

    def nbytes(self, longest: int) -> int:
        """Return the bytes of the tables for sequences of at most `longest` tokens."""
        return sum(4 * _positions(longest) * rope.head_dim for rope in self._ropes)

    def below(self, length: int) -> Sequence[Tensor]:
        """Return cosines and sines by position for each rope: float32 [at least `length`, 2, head_dim / 2]."""
        if length > self._length:
            self._length = _positions(length)
            positions = torch.arange(self._length)
            self._turns = [torch.stack(table(positions, torch.float32), dim=1) for table in self._tables]
        return self._turns


def _positions(length: int) -> int:
    """Return the number of positions in the tables for sequences of `length` tokens."""
    return max(FIRST_POSITIONS, 1 << (length - 1).bit_length())
