"""Tables that are updated by changes equal the sequences' tables, for all kinds of changes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.engine.protocol.plan import StepPlan, TableChange
from plimsoll_runtime.engine.sequence import BlockTable
from plimsoll_runtime.execution.inputs.batch_state import BatchState
from plimsoll_runtime.execution.inputs.block_tables import FEWEST, BlockTableState, DeviceBlockTables
from plimsoll_runtime.execution.inputs.device_state import DeviceState
from plimsoll_runtime.execution.inputs.upload_buffer import UploadBuffer

SLOTS, BLOCKS, MOST = 3, 100_000, 2000
CPU = torch.device("cpu")


def upload(tables: DeviceBlockTables) -> int:
    """Send the missing changes and return their number."""
    buffer = UploadBuffer(CPU)
    buffer.start_step()
    count = tables.missing()[0].size
    changes = tables.add_to(buffer)
    buffer.send()
    tables.receive(changes)
    return count


@given(data=st.data())
def test_whatever_becomes_of_a_table(data: st.DataObject) -> None:
    """Sequences come, grow, slide, have blocks replaced and renumbered, and go, several times between two plans;
    sometimes a device gets the changes.
    """
    tables = dict[int, BlockTable]()
    kept = BlockTableState(SLOTS, BLOCKS) if data.draw(st.booleans()) else DeviceBlockTables(SLOTS, BLOCKS, MOST, CPU)
    fresh = iter(range(BLOCKS))

    def blocks(count: int) -> list[int]:
        return [next(fresh) for _ in range(count)]

    for _ in range(data.draw(st.integers(1, 40))):
        slot = data.draw(st.integers(0, SLOTS - 1))
        table = tables.get(slot)
        kind = data.draw(st.sampled_from(["grow", "grow", "slide", "replace", "renumber", "go", "tell", "tell"]))
        if table is None:
            tables[slot] = BlockTable(data.draw(st.integers(0, 300)), blocks(data.draw(st.sampled_from([0, 1, 5, 70]))))
        elif kind == "grow":
            table.blocks.extend(blocks(data.draw(st.sampled_from([1, 1, 2, 40]))))
        elif kind == "slide":
            table.give_back(data.draw(st.integers(0, len(table.blocks))))
        elif kind == "replace" and table.blocks:
            table.replace(data.draw(st.integers(table.first, table.end - 1)), next(fresh))
        elif kind == "renumber":
            table.renumber({block: next(fresh) for block in table.blocks[::2]})
        elif kind == "go":
            del tables[slot]
            kept.clear(slot)
        elif (change := table.change(0)) is not None:
            kept.change(slot, change)
            if isinstance(kept, DeviceBlockTables) and data.draw(st.booleans()):
                upload(kept)
        kept.check_integrity()
    for slot, table in tables.items():
        if (change := table.change(0)) is not None:
            kept.change(slot, change)
        assert table.is_sent
        assert table.change(0) is None
    kept.check_integrity()
    if isinstance(kept, DeviceBlockTables):
        upload(kept)
        assert kept.missing()[0].size == 0
        kept.check_integrity()
    assert {slot: (kept.firsts[slot], list(kept.table(slot))) for slot in tables} == {
        slot: (table.first, table.blocks) for slot, table in tables.items()
    }


def test_what_is_sent_is_what_is_new() -> None:
    table = BlockTable(2, [7, 8, 9])
    assert table.change(1) == TableChange(1, 2, 2, [7, 8, 9])
    table.blocks.append(4)
    assert table.change(1) == TableChange(1, 2, 5, [4])
    assert table.replace(4, 3) == 9
    assert table.give_back(1) == [7]
    assert table.change(1) == TableChange(1, 3, 4, [3, 4])
    table.give_back(2)
    assert table.change(1) == TableChange(1, 5, 6, [])


def test_a_window_that_slides_for_ever_stays_in_its_row() -> None:
    kept, table = BlockTableState(1, BLOCKS), BlockTable()
    for block in range(1000):
        table.blocks.append(block)
        if len(table.blocks) > FEWEST // 2:
            table.give_back(1)
        change = table.change(0)
        assert change is not None
        kept.change(0, change)
    assert list(kept.table(0)) == list(range(1000 - FEWEST // 2, 1000))
    assert len(kept.blocks) == FEWEST


@pytest.mark.parametrize("block", [-1, 10])
def test_a_block_that_the_cache_has_not(block: int) -> None:
    with pytest.raises(ValueError, match=r"a block table has a block outside 0\.\.9"):
        BlockTableState(1, 10).change(0, TableChange(0, 0, 0, [1, block, 2]))


@pytest.mark.parametrize("change", [TableChange(0, 3, 7, [1]), TableChange(0, 1, 4, [1]), TableChange(0, 2, 1, [1])])
def test_a_change_of_what_is_not_kept(change: TableChange) -> None:
    """After a gap, with freed blocks, and with negative lengths."""
    kept = BlockTableState(1, 10)
    kept.change(0, TableChange(0, 2, 2, [4, 5, 6, 7]))
    with pytest.raises(ValueError, match="slot 0, but the slot has 4 blocks from number 2 on"):
        kept.change(0, change)
    assert (kept.firsts[0], list(kept.table(0))) == (2, [4, 5, 6, 7])


def test_after_a_sequence_has_gone_nothing_is_gone_on_from() -> None:
    state = BatchState(2, 2, 10)
    for tables in state.tables:
        tables.change(0, TableChange(0, 0, 0, [1, 2]))
        tables.change(1, TableChange(0, 0, 0, [3]))
    state.begin(StepPlan([], freed_slots=[0]))
    assert [list(tables.table(0)) + list(tables.table(1)) for tables in state.tables] == [[3], [3]]
    with pytest.raises(ValueError, match="slot 0, but the slot has 0 blocks from"):
        state.tables[1].change(0, TableChange(0, 0, 2, [4]))
    state.begin(StepPlan([], moves=[(9, 3)], num_blocks=8))
    assert [list(tables.table(1)) for tables in state.tables] == [[], []]
    state.check_integrity()


def test_a_device_is_sent_what_is_new() -> None:
    """Only changes are sent; changes that were not marked as sent are still missing."""
    state = DeviceState(2, 1, BLOCKS, 70, CPU)
    [kept] = state.tables
    assert upload(kept) == 0
    kept.change(1, TableChange(0, 0, 0, [5, 6, 7]))
    assert [found.tolist() for found in kept.missing()] == [[70, 71, 72], [5, 6, 7]]
    assert upload(kept) == 3
    kept.change(1, TableChange(0, 1, 3, [8]))
    assert [found.tolist() for found in kept.missing()] == [[73], [8]]
    kept.change(0, TableChange(0, 0, 0, list(range(70))))
    state.check_integrity()
    assert upload(kept) == 71
    assert kept.on_device.tolist() == [*range(70), 5, 6, 7, 8, *[0] * 66, *[0] * 70]
    state.check_integrity()


def test_rows_on_a_device_stay_as_long_as_they_are() -> None:
    kept = DeviceBlockTables(2, BLOCKS, 8, CPU)
    kept.change(1, TableChange(0, 3, 3, list(range(8))))
    with pytest.raises(ValueError, match="a table of 9 blocks does not fit in a row of 8 columns"):
        kept.change(1, TableChange(0, 3, 11, [1]))
    assert list(kept.table(1)) == list(range(8))
    kept.change(1, TableChange(0, 5, 11, [1, 2]))
    assert (list(kept.table(1)), len(kept.blocks)) == ([2, 3, 4, 5, 6, 7, 1, 2], 16)
    kept.check_integrity()
