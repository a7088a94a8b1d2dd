"""A model's output layer and its embedding on the CPU, which may have one matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_kernels.cpu.linear import PackedLinear
from plimsoll_kernels.cpu.places import Places
from plimsoll_kernels.cpu.records import KernelsRecord
from plimsoll_runtime.models.ops.pooling_head import PooledHead
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.weight_reader import WeightReader

Head = Callable[[Tensor], Tensor]
"""Hidden states to logits, or pooled vectors to what becomes of them."""


def read_head(
    kernels: KernelsRecord, reader: WeightReader, places: Places, program: Program
) -> tuple[Head, Tensor | PackedLinear]:
    """The head, and the embedding: the packed output layer if they are tied."""
    [embed, *_], head = program.ops[0].weights(), program.head
    if isinstance(head, PooledHead):
        embedding = _table(embed, reader, places)
        return head.compiled(_Kept(reader, places)), embedding
    bias = None if head.bias is None else reader.read(head.bias)
    table = None if head.head.tied else _table(embed, reader, places)
    output = PackedLinear(kernels, reader.read(head.weight), bias, places)
    reader.forget(head.weight)
    buffer, finished = Buffer(), head.finished
    return lambda hidden: finished(output(hidden, buffer)), output if table is None else table


def _table(embed: Weight, reader: WeightReader, places: Places) -> Tensor:
    return places.keep(reader.read(embed, keep=not places.copies))


class _Kept:
    """See Weights: tensors that are in their places as they are."""

    def __init__(self, reader: WeightReader, places: Places) -> None:
        self._reader = reader
        self._places = places
        self.device = reader.device

    def read(self, weight: Weight, *, keep: bool = False) -> Tensor:
        """See Weights."""
        return self._places.keep(self._reader.read(weight, keep=keep))

    def joined(self, weights: Sequence[Weight]) -> Tensor:
        """See Weights."""
        return torch.cat([self.read(weight) for weight in weights])
