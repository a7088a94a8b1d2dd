"""Many rows at the same time, an end that leaves no task, and no row that waits for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from plimsoll_runtime.batch.job import Answered, Row
from plimsoll_runtime.batch.output_paths import OutputPaths
from plimsoll_runtime.batch.run import Runner
from plimsoll_runtime.batch.store import ANSWERS, Store


def rows(count: int) -> Iterator[Row]:
    for index in range(count):
        yield Row(index, index, "f", index + 1, 1, b'{"prompt": "%d"}' % (index * 7919 % 1000))


def answered(row: Row) -> Answered:
    return Answered(row.number, b"%d" % row.number)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(OutputPaths(tmp_path / "out.jsonl"), {}, ordered=True, created=0, mark_bytes=500) as made:
        yield made


def lines(tmp_path: Path) -> list[int]:
    return [int(line) for line in (OutputPaths(tmp_path / "out.jsonl").work / ANSWERS).read_bytes().split()]


@pytest.mark.parametrize(("at_once", "most_ahead"), [(1, 1), (3, 2), (64, 10_000)])
async def test_all_are_answered_in_order(store: Store, tmp_path: Path, at_once: int, most_ahead: int) -> None:
    under_way = most = 0

    async def answer(row: Row) -> Answered:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(row.number % 5):
            await asyncio.sleep(0)
        under_way -= 1
        return answered(row)

    told: list[int] = []
    runner = Runner(answer, store, at_once, lambda row, _: told.append(row.number), most_ahead=most_ahead)
    await runner.run(rows(300))
    store.finish()
    assert lines(tmp_path) == list(range(300))
    assert sorted(told) == list(range(300))
    assert most <= at_once


async def test_what_is_done_is_not_asked_again(store: Store) -> None:
    asked: list[int] = []

    async def answer(row: Row) -> Answered:
        asked.append(row.number)
        return answered(row)

    for number in (0, 3, 7):
        store.take(Answered(number, b"%d" % number))
    await Runner(answer, store, 4).run(rows(9))
    assert sorted(asked) == [1, 2, 4, 5, 6, 8]


async def test_an_error_ends_the_run_and_what_was_answered_is_kept(store: Store) -> None:
    left = 0

    async def answer(row: Row) -> Answered:
        nonlocal left
        if row.number == 50:
            raise RuntimeError("the engine died")
        if row.number % 10 == 9:
            left += 1
            try:
                await asyncio.Event().wait()
            finally:
                left -= 1
        return answered(row)

    with pytest.raises(RuntimeError, match="died"):
        await Runner(answer, store, 100).run(rows(100))
    assert left == 0
    assert len(store.done) > 0
    store.check_integrity()


async def test_cancelled_it_leaves_nothing_under_way(store: Store) -> None:
    began = asyncio.Event()

    async def answer(row: Row) -> Answered:
        if row.number == 20:
            began.set()
        await asyncio.sleep(0 if row.number < 20 else 3600)
        return answered(row)

    running = asyncio.create_task(Runner(answer, store, 100).run(rows(100)))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(asyncio.all_tasks()) == 1
    store.check_integrity()
