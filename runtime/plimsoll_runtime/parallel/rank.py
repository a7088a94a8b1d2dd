"""One rank of a parallel group, and what all ranks must agree on before their first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import msgspec

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.models.ops.logits import Logits
from plimsoll_runtime.models.program import Outline, Program
from plimsoll_runtime.parallel.choice import Choice
from plimsoll_runtime.parallel.collectives import Exchanging
from plimsoll_runtime.parallel.layout import Layout, vocabulary_parts
from plimsoll_runtime.parallel.member import CountedCollectives
from plimsoll_runtime.parallel.shard import check_divisible, shard
from plimsoll_runtime.parallel.stages import borders_of, stage_of


@dataclass(frozen=True, slots=True)
class Chosen:
    """Choices that a rank makes by its processor, as names. All ranks must make those of rank 0."""

    dtype: str
    attention_backend: str
    instructions: str


@dataclass(frozen=True, slots=True)
class Cache:
    """The KV cache that fits on a rank of a `stage`. `rules` and `layers`: of each cache group."""

    num_blocks: int
    max_model_len: int
    rules: str
    layers: tuple[tuple[int, ...], ...]
    stage: int = 0


Record = TypeVar("Record", Chosen, Cache)


@dataclass(frozen=True, slots=True)
class Rank:
    """Rank `number` of a group. `neighbours`: ranks on this machine, itself included, that share its memory.

    `group`: the exchange with all ranks. `collectives`: with the ranks of its stage, and the stages next to it.
    `num_blocks`: size of the KV cache, if it is that of ranks which this one and its neighbours replace.
    `failed_backends`: names of the attention backends that have failed on such ranks; only rank 0 knows them.
    """

    number: int
    layout: Layout
    neighbours: int
    group: Exchanging
    collectives: CountedCollectives
    num_blocks: int | None = None
    failed_backends: Sequence[str] = ()

    def part(self, outline: Outline) -> Program:
        """Return this rank's program. Raises the errors of `part_of`."""
        return part_of(outline, self.layout, self.number, in_kernels=self.collectives.exchange is not None)

    def choice(self, outline: Outline) -> Choice | None:
        """Return the choice of tokens that this rank joins; None if rank 0 has the whole output layer, or if its
        stage has none.
        """
        head = outline.head if isinstance(outline, Program) else None
        if not isinstance(head, Logits) or head.part is None:
            return None
        parts = vocabulary_parts(outline.facts.vocab_size, self.layout.tensor)
        assert parts is not None
        return Choice(self.collectives, parts, self.layout.shard(self.number))

    def chosen(self, own: Chosen | None) -> Chosen:
        """Return the choices of rank 0, which gives its `own`; other ranks give None."""
        return self._all(own, Chosen)[0]

    def check(self, own: Chosen) -> None:
        """Raise UsageError, on every rank, if a rank has made other choices than rank 0."""
        first, *others = self._all(own, Chosen)
        for number, other in enumerate(others, 1):
            for field in fields(Chosen):
                wanted, found = getattr(first, field.name), getattr(other, field.name)
                if wanted != found:
                    raise UsageError(
                        f"rank {number} computes with {field.name} {found}, but rank 0 with {wanted}: give both the "
                        f"same with {_OPTIONS[field.name]}"
                    )

    def total(self, own: int) -> int:
        """Return the sum of a number over all ranks."""
        return sum(int.from_bytes(each, "little") for each in self.group.gathered(own.to_bytes(8, "little")))

    def cache(self, own: Cache) -> Cache:
        """Return the cache that fits on every rank. Raises UsageError if the ranks divide their layers differently."""
        caches = self._all(own, Cache)
        first = {other.stage: other.layers for other in reversed(caches)}
        if any((other.rules, other.layers) != (own.rules, first[other.stage]) for other in caches):
            raise UsageError(
                "the ranks have different cache groups, because their layers have different numbers of key heads; "
                "choose a --tensor-parallel that divides them"
            )
        blocks, longest = min(each.num_blocks for each in caches), min(each.max_model_len for each in caches)
        return Cache(blocks, longest, own.rules, own.layers, own.stage)

    def _all(self, own: Record | None, kind: type[Record]) -> list[Record]:
        """Return the records of all ranks; a missing one is left out."""
        found = self.group.gathered(b"" if own is None else msgspec.msgpack.encode(own))
        return [msgspec.msgpack.decode(each, type=kind) for each in found if each]


def part_of(outline: Outline, layout: Layout, rank: int, *, in_kernels: bool) -> Program:
    """Return the program of one rank (see `shard` and `stage_of`). Raises ModelError, UsageError."""
    check_divisible(outline)
    assert isinstance(outline, Program)
    part = outline
    if layout.tensor > 1:
        part = shard(outline, layout.tensor, layout.shard(rank), in_kernels=in_kernels)
    if layout.stages > 1:
        part = stage_of(part, borders_of(outline, layout.stages), layout.stage(rank))
    return part


_OPTIONS = {
    "dtype": "--dtype",
    "attention_backend": "--attention-backend",
    "instructions": "the environment variable PLIMSOLL_CPU_ISA",
}
