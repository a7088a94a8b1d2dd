"""The disk's threads: blocks written and read back, and disks that fail."""

from __future__ import annotations

import errno
import gc
import logging
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch

from plimsoll_runtime.engine.kv.offload.base import Done
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload import disk_store
from plimsoll_runtime.execution.kv.offload.block_files import BlockFolder
from plimsoll_runtime.execution.kv.offload.disk_store import FAILURES, DiskStore, _Stopwatch
from plimsoll_runtime.execution.kv.offload.host_memory import HostBlocks
from plimsoll_runtime.models.spec.attention import AttentionShape

SECONDS = 60.0
A, B = bytes([1]) * 32, bytes([2]) * 32


class Folder(BlockFolder):
    """A folder that fails on demand."""

    failure: Exception | None = None

    delete_failure: Exception | None = None

    def write(self, name: bytes, data: memoryview) -> None:
        if self.failure is not None:
            raise self.failure
        super().write(name, data)

    def delete(self, name: bytes) -> None:
        if self.delete_failure is not None:
            raise self.delete_failure
        super().delete(name)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path, bytes(32))


@pytest.fixture
def host() -> HostBlocks:
    cache = KvCache([AttentionShape(1, 1, 16, 1.0)], 4, 16, torch.float32, torch.device("cpu"))
    return HostBlocks(cache, 3)


def results(store: DiskStore, count: int = 1) -> list[Done]:
    done: list[Done] = []
    while len(done) < count:
        store.wait(SECONDS)
        more = store.poll()
        assert more, "nothing came in time"
        done.extend(each._replace(ns=0) for each in more)
    return done


def test_a_block_goes_to_the_disk_and_comes_back(folder: Folder, host: HostBlocks) -> None:
    store = DiskStore(folder, host)
    host.row(1)[:] = bytes([7]) * len(host.row(1))
    store.write(1, A)
    assert results(store) == [Done(1, True)]
    store.read(2, A)
    assert results(store) == [Done(2, True)]
    assert host.row(2) == host.row(1)
    assert not any(host.row(3))
    store.delete(A)
    store.close()
    assert BlockFolder(folder.path.parent, bytes(32)).names() == []


def test_threads_end_before_the_interpreter_does(folder: Folder, host: HostBlocks) -> None:
    stored = DiskStore(folder, host)
    stored.write(1, A)
    disk_store._end_all()
    assert not any(thread.is_alive() for thread in stored._threads)
    assert (folder.path / f"{A.hex()}.kv").exists()


def test_the_interpreter_does_not_wait_for_ever_for_a_disk_that_hangs(
    folder: Folder, host: HostBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(folder, "write", lambda name, data: goes_on.wait(SECONDS))
    monkeypatch.setattr(disk_store, "EXIT_SECONDS", 0.01)
    stored = DiskStore(folder, host)
    stored.write(1, A)
    disk_store._end_all()
    assert stored._threads[0].is_alive()
    goes_on.set()
    stored.close()


def test_what_a_read_took_is_told(folder: Folder, host: HostBlocks) -> None:
    store = DiskStore(folder, host)
    store.write(1, A)
    results(store)
    before = time.monotonic_ns()
    store.read(2, A)
    while not (done := store.poll()):
        store.wait(SECONDS)
    assert 0 < done[0].ns <= time.monotonic_ns() - before
    store.close()


def test_what_is_read_at_once_counts_once() -> None:
    watch = _Stopwatch()
    assert [watch.took(*times) for times in ((10, 20), (12, 23), (40, 45), (30, 41))] == [10, 3, 5, 0]


def test_what_was_asked_for_is_done_before_the_end_and_found_by_the_next(folder: Folder, host: HostBlocks) -> None:
    store = DiskStore(folder, host)
    store.write(1, A)
    store.write(2, B)
    store.close()
    after = DiskStore(Folder(folder.path.parent, bytes(32)), host)
    assert sorted(after.names()) == [A, B]
    after.close()


def test_what_is_not_there_or_rotten_fails(folder: Folder, host: HostBlocks) -> None:
    store = DiskStore(folder, host)
    (folder.path / f"{A.hex()}.kv").write_bytes(b"rotten")
    store.read(1, A)
    store.read(2, B)
    assert sorted(results(store, 2)) == [Done(1, False), Done(2, False)]
    assert not store.broken
    store.close()


def test_failures_in_a_row_switch_the_disk_off_with_one_warning(
    folder: Folder, host: HostBlocks, caplog: pytest.LogCaptureFixture
) -> None:
    store = DiskStore(folder, host)
    folder.failure = OSError(errno.ENOSPC, "no space left on device")
    for _ in range(FAILURES - 1):
        store.write(1, A)
    results(store, FAILURES - 1)
    folder.failure = None
    store.write(1, A)
    assert results(store) == [Done(1, True)]
    folder.failure = OSError(errno.EROFS, "read-only file system")
    with caplog.at_level(logging.WARNING):
        for _ in range(FAILURES):
            assert not store.broken, "a success in between counts"
            store.write(1, A)
            assert results(store) == [Done(1, False)]
        assert store.broken
        folder.failure = None
        store.read(2, A)
        store.write(1, A)
        assert sorted(results(store, 2)) == [Done(1, False), Done(2, False)]
    (warning,) = caplog.records
    assert "8 failures in a row" in warning.getMessage()
    assert "read-only file system" in warning.getMessage()
    store.close()


def test_who_was_told_of_nothing_is_told_so_once(folder: Folder, host: HostBlocks) -> None:
    store = DiskStore(folder, host)
    # A task was taken before its event was handled.
    store._worker.told.set()
    assert store.poll() == []
    assert not store._worker.told.is_set(), "waiting would return at once, again and again"
    store.close()


def test_deletes_do_not_hide_that_every_write_fails(folder: Folder, host: HostBlocks) -> None:
    store = DiskStore(folder, host)
    folder.failure = OSError(errno.ENOSPC, "no space left on device")
    for _ in range(FAILURES):
        assert not store.broken
        store.write(1, A)
        store.delete(A)
        results(store)
    assert store.broken
    store.close()


def test_an_error_nobody_thought_of_switches_the_disk_off_and_nobody_waits(
    folder: Folder, host: HostBlocks, caplog: pytest.LogCaptureFixture
) -> None:
    store = DiskStore(folder, host)
    folder.failure = RuntimeError("a bug")
    store.write(1, A)
    store.write(2, B)
    assert results(store, 2) == [Done(1, False), Done(2, False)]
    assert store.broken
    assert "unexpected error" in caplog.text
    store.close()


def test_the_threads_end_with_the_store(folder: Folder, host: HostBlocks) -> None:
    store = DiskStore(folder, host)
    threads, gone = list(store._threads), weakref.ref(store)
    del store
    gc.collect()
    assert gone() is None
    for thread in threads:
        thread.join(SECONDS)
    assert not {*threads} & {*threading.enumerate()}


def given_up(folder: Folder, host: HostBlocks) -> DiskStore:
    """Return a disk that was switched off after it had stored A and B."""
    store = DiskStore(folder, host)
    for frame, name in ((1, A), (2, B)):
        store.write(frame, name)
    results(store, 2)
    folder.failure = OSError(errno.EROFS, "read-only file system")
    for _ in range(FAILURES):
        store.write(1, A)
    results(store, FAILURES)
    assert store.broken
    return store


def test_what_is_forgotten_is_deleted_also_once_the_disk_was_given_up(folder: Folder, host: HostBlocks) -> None:
    store = given_up(folder, host)
    store.delete(A)
    store.close()
    assert BlockFolder(folder.path.parent, bytes(32)).names() == [B]


def test_nothing_is_left_when_all_is_forgotten_not_even_what_nobody_asked_for(folder: Folder, host: HostBlocks) -> None:
    store = given_up(folder, host)
    (folder.path / "no-name.kv").touch()
    store.clear()
    store.close()
    assert [path.name for path in folder.path.iterdir()] == ["lock"]


def test_what_cannot_be_deleted_is_tried_again_in_the_end_and_then_warned_of(
    folder: Folder, host: HostBlocks, caplog: pytest.LogCaptureFixture
) -> None:
    for works_later in (True, False):
        store = given_up(folder, host)
        caplog.clear()
        folder.delete_failure = OSError(errno.EIO, "input/output error")
        store.delete(A)
        store.delete(B)
        store.read(1, A)
        store.write(1, A)
        results(store, 2)
        if works_later:
            folder.delete_failure = None
        store.close()
        after = Folder(folder.path.parent, bytes(32))
        assert sorted(after.names()) == ([] if works_later else [A, B])
        assert [f"delete {folder.path}, or the next" in r.getMessage() for r in caplog.records] == [True] * (
            not works_later
        )
        folder = after


def test_reads_of_what_is_forgotten_meanwhile_do_not_switch_the_disk_off(folder: Folder, host: HostBlocks) -> None:
    store = DiskStore(folder, host)
    for _ in range(2 * FAILURES):
        store.read(1, A)
        assert results(store) == [Done(1, False)]
    assert not store.broken
    store.write(1, A)
    assert results(store) == [Done(1, True)]
    store.close()
