"""A small decoder whose partial results are summed over ranks: a fixed row of a table is each rank's part of a token.

`python -m kernel_support.reducing DESCRIPTOR RANK INSTRUCTIONS DTYPE` is one rank of two. It prints "ready", then
computes steps for each case in its input, a JSON list, and prints whether each is right; then it waits for the end of
its input.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch
from kernel_support.ranks import parts_of, sum_of
from torch import Tensor

from plimsoll_kernels.cpu.decoder import CpuDecoder
from plimsoll_kernels.cpu.exchange import AnyExchange, Exchange
from plimsoll_kernels.cpu.library import kernels
from plimsoll_kernels.cpu.op_records import RESULT, EmbedRecord, Normed, NormRecord, ReduceRecord
from plimsoll_kernels.cpu.records import KernelsRecord, OpRecord, PlaceRecord, Timed
from plimsoll_kernels.cpu.step import PagedCache, PagedStep
from plimsoll_kernels.cpu.threads import share

VOCAB = 50


class Case(NamedTuple):
    """Rows of a step, the width of their values and of the buffers, and the op's scale and whether it adds."""

    rows: int
    width: int
    wider: int
    scale: float
    adds: bool
    threads: int = 1


class Blocks(NamedTuple):
    """A block table of one sequence."""

    blocks: array[int]
    begins: Sequence[int]
    counts: Sequence[int]


class Table(NamedTuple):
    """The tokens of one sequence in a cache without layers."""

    cells: Tensor
    context_lens: Sequence[int]
    block_tables: Blocks


def step(rows: int) -> PagedStep:
    """Return a step of one sequence, of a cache without layers."""
    blocks = -(-rows // 16)
    table = Table(torch.arange(rows), [rows], Blocks(array("i", range(blocks)), [0], [blocks]))
    return PagedStep(PagedCache([], [], block_size=16), [rows], [table])


def decoder(found: KernelsRecord, dtype: torch.dtype, exchange: AnyExchange, case: Case) -> CpuDecoder:
    """Return a decoder: the sum of parts x scale, which is added to a residual or written over it."""
    parts, residual = tables(dtype, exchange.ranks, case.width)
    own = parts[exchange.rank].to(dtype)

    def embed(table: Tensor, target: int) -> EmbedRecord:
        return EmbedRecord(
            table=table.data_ptr(), packed=None, texts=None, target=target, width=case.width, vocab=VOCAB, scale=1.0
        )

    ops = [
        OpRecord.of(embed(residual, 1), Timed.EMBED),
        OpRecord.of(embed(own, 0), Timed.EMBED),
        OpRecord.of(
            ReduceRecord(
                exchange=exchange.handle, source=0, target=1, width=case.width, adds=case.adds, scale=case.scale
            ),
            Timed.REDUCE,
        ),
        OpRecord.of(NormRecord(source=1, target=RESULT, width=case.width, norm=Normed.AS_IS), Timed.NORM),
    ]
    places = [
        PlaceRecord(operands=0, width=case.width + case.wider, narrowest=case.width),
        PlaceRecord(operands=0, width=case.width + 2 * case.wider, narrowest=case.width),
    ]
    return CpuDecoder(found, ops, places, width=case.width, dtype=dtype, kept=[own, residual, exchange])


def tables(dtype: torch.dtype, ranks: int, width: int) -> tuple[list[Tensor], Tensor]:
    """Return each rank's part of each token in float32, rounded to the dtype, and the residual."""
    *parts, residual = parts_of(ranks + 1, VOCAB, width)
    return [part.to(dtype).float() for part in parts], residual.to(dtype)


def expected(dtype: torch.dtype, ranks: int, case: Case, tokens: Tensor) -> Tensor:
    """Return the hidden states of tokens."""
    parts, residual = tables(dtype, ranks, case.width)
    total = sum_of(parts) * case.scale
    return (residual.float() + total if case.adds else total).to(dtype)[tokens]


def compute(found: KernelsRecord, dtype: torch.dtype, exchange: AnyExchange, case: Case) -> tuple[CpuDecoder, bool]:
    """Compute some steps; return the decoder and whether all results are exact."""
    share(case.threads)
    tokens = torch.arange(case.rows) * 7 % VOCAB
    made, right = decoder(found, dtype, exchange, case), expected(dtype, exchange.ranks, case, tokens)
    return made, all(torch.equal(made(tokens, torch.arange(case.rows), [], step(case.rows)), right) for _ in range(5))


def main() -> None:
    """Run as one rank of two."""
    descriptor, rank, instructions, dtype_name = sys.argv[1:]
    dtype: torch.dtype = getattr(torch, dtype_name)
    found = kernels(dtype, instructions)
    assert found is not None
    with Exchange(int(descriptor), 2, int(rank)) as exchange:
        print("ready", flush=True)
        for fields in json.loads(sys.stdin.readline()):
            _, right = compute(found, dtype, exchange, Case(*fields))
            print("right" if right else "wrong", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
