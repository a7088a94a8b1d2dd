"""Changes of block tables and copied tables, by two kernels, equal those of the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from plimsoll_kernels.decode_tables import kernel
from plimsoll_kernels.decode_tables.op import decode_tables, write_blocks
from plimsoll_kernels.decode_tables.tables import DecodeTables

BLOCKS = 900
STALE = 2**30
"""A number that no block has, for entries that the device lacks."""
UNTOUCHED = -7


class Row(NamedTuple):
    """A decode: its tokens, the number of blocks that its windows have freed, and the beginning of its table in its
    row.
    """

    tokens: int
    given_back: int
    begin: int


@dataclass
class Case:
    """Block tables with as many columns as any sequence needs, and a padding row after them, for up to `bucket` rows.

    The last block of each table is new, and of the first table all blocks for which there is space.
    """

    rows: Sequence[Row]
    bucket: int
    block_size: int
    width: int
    device: str

    def __post_init__(self) -> None:
        columns = self.width + max(row.begin for row in self.rows)
        self.nobody = columns * len(self.rows)
        self.kept = torch.randint(1, BLOCKS, (self.nobody + columns,), dtype=torch.int32)
        self.kept[self.nobody :] = 0
        self.begins = [number * columns + row.begin for number, row in enumerate(self.rows)]
        self.firsts = [min(row.given_back, (row.tokens - 1) // self.block_size) for row in self.rows]
        self.counts = [
            -(-row.tokens // self.block_size) - first for row, first in zip(self.rows, self.firsts, strict=True)
        ]
        lasts = [begin + count - 1 for begin, count in zip(self.begins, self.counts, strict=True)]
        new = [*lasts, *range(self.begins[0], lasts[0] + 1)][: self.bucket]
        self.there = self.kept.index_fill(0, torch.tensor(new), STALE).to(self.device)
        # As in a graph: rows of one tensor.
        numbers = torch.tensor([[0, self.nobody, 0, self.nobody, 0]]).T.repeat(1, self.bucket)
        count = len(self.rows)
        numbers[0, :count] = torch.tensor([row.tokens - 1 for row in self.rows])
        numbers[1, :count], numbers[2, :count] = torch.tensor(self.begins), torch.tensor(self.firsts)
        numbers[3, : len(new)], numbers[4, : len(new)] = torch.tensor(new), self.kept[new].long()
        self.positions, self.of_begins, self.of_firsts, self.places, self.written = numbers.to(self.device).unbind()

    def run(self, implementation: Any) -> tuple[Tensor, DecodeTables]:
        """Return (all blocks on the device, the decodes' tables)."""
        blocks = self.there.clone()
        write_blocks(blocks, self.places, self.written, implementation=implementation)
        made = decode_tables(
            blocks,
            self.positions,
            self.of_begins,
            self.of_firsts,
            block_size=self.block_size,
            width=self.width,
            implementation=implementation,
        )
        return blocks, made

    def check(self, implementation: Any) -> DecodeTables:
        """Compare with the host's tables; only undefined entries may differ."""
        blocks, made = self.run(implementation)
        assert torch.equal(blocks.cpu(), self.kept)
        assert [(each.dtype, list(each.shape)) for each in made] == [
            (torch.int32, [self.bucket, self.width]),
            (torch.int32, [self.bucket]),
            (torch.int64, [self.bucket]),
        ]
        padding = self.bucket - len(self.rows)
        contexts = [row.tokens - first * self.block_size for row, first in zip(self.rows, self.firsts, strict=True)] + [
            1
        ] * padding
        assert made.context_lens.tolist() == contexts
        tables, cells = made.block_tables.tolist(), []
        begins, counts = self.begins + [self.nobody] * padding, self.counts + [1] * padding
        for table, begin, count, context in zip(tables, begins, counts, contexts, strict=True):
            assert table[:count] == self.kept[begin : begin + count].tolist()
            cells.append(table[count - 1] * self.block_size + (context - 1) % self.block_size)
        assert made.cells.tolist() == cells
        return made


@st.composite
def cases(draw: st.DrawFn, device: str, longest: int) -> Case:
    block_size = draw(st.sampled_from([1, 3, 16]))
    row = st.builds(Row, st.integers(1, longest), st.integers(0, longest), st.integers(0, 3))
    rows = draw(st.lists(row, min_size=1, max_size=6))
    most = -(-max(each.tokens for each in rows) // block_size)
    return Case(rows, len(rows) + draw(st.integers(0, 3)), block_size, most + draw(st.integers(0, 5)), device)


@settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data(), longest=st.sampled_from([20, 300, 3 * kernel.COLUMNS]))
def test_kernels_and_reference(triton_device: str, data: st.DataObject, longest: int) -> None:
    """For any lengths, freed blocks, changes and padding rows."""
    case = data.draw(cases(triton_device, longest))
    case.check("reference")
    case.check("triton")


@pytest.fixture
def _noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninitialised memory is UNTOUCHED."""
    plain = torch.empty

    def noticed(*args: Any, **kwargs: Any) -> Tensor:
        return plain(*args, **kwargs).fill_(UNTOUCHED)

    monkeypatch.setattr(torch, "empty", noticed)


@pytest.mark.usefixtures("_noticed")
def test_only_what_contexts_need_is_copied(triton_device: str) -> None:
    """Also in the last column of a program, and the first of the next."""
    tokens = [1, 16, 17, 16 * kernel.COLUMNS, 16 * kernel.COLUMNS + 1]
    case = Case([Row(count, 0, 1) for count in tokens], 6, 16, 2 * kernel.COLUMNS, triton_device)
    made = case.check("triton")
    copied = (made.block_tables != UNTOUCHED).sum(1)
    assert copied.tolist() == [*case.counts, 1]


def test_more_is_new_than_a_program_writes(triton_device: str) -> None:
    blocks = torch.zeros(2000, dtype=torch.int32, device=triton_device)
    places = torch.randperm(2000)[: 2 * kernel.TILE + 5].to(triton_device)
    written = torch.arange(1, len(places) + 1, device=triton_device)
    write_blocks(blocks, places, written, implementation="triton")
    assert torch.equal(blocks[places].long(), written)
    assert int((blocks != 0).sum()) == len(places)


@pytest.mark.usefixtures("_noticed")
def test_a_table_too_long_does_not_reach_into_the_next(triton_device: str) -> None:
    """A caller's mistake stays in its row."""
    case = Case([Row(40, 0, 0), Row(3, 0, 0)], 2, 8, 5, triton_device)
    case.width = 3
    _, made = case.run("triton")
    assert made.block_tables.tolist() == [case.kept[:3].tolist(), [int(case.kept[5]), UNTOUCHED, UNTOUCHED]]


INTS, BLOCK_NUMBERS = torch.zeros(3, dtype=torch.int64), torch.zeros(9, dtype=torch.int32)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"blocks": INTS}, r"blocks is torch.int64 \[3\]; expected contiguous int32 \[N\]"),
        ({"blocks": BLOCK_NUMBERS[::2]}, "expected contiguous int32"),
        ({"blocks": BLOCK_NUMBERS.view(3, 3)}, r"blocks is torch.int32 \[3, 3\]"),
        ({"begins": INTS[:2]}, r"begins is \[2\], expected \[3\]"),
        ({"firsts": INTS.int()}, "firsts is torch.int32 on cpu; expected contiguous int64"),
        ({"begins": INTS.to("meta")}, "begins is torch.int64 on meta; expected contiguous int64 on cpu"),
        ({"positions": torch.zeros(6, dtype=torch.int64)[::2]}, "positions is torch.int64"),
        ({"width": 0}, "width is 0 and block_size 4"),
        ({"block_size": 0}, "width is 2 and block_size 0"),
    ],
)
def test_refused_tables(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"blocks": BLOCK_NUMBERS, "block_size": 4, "width": 2}
    arguments |= dict.fromkeys(("positions", "begins", "firsts"), INTS)
    with pytest.raises(ValueError, match=message):
        decode_tables(**arguments | changed)


def test_refused_writes() -> None:
    with pytest.raises(ValueError, match=r"written is \[2\], expected \[3\]"):
        write_blocks(BLOCK_NUMBERS, INTS, INTS[:2])
    with pytest.raises(ValueError, match=r"places is torch.int32 on cpu; expected contiguous int64"):
        write_blocks(BLOCK_NUMBERS, INTS.int(), INTS)
