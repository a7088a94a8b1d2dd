"""The store deletes what a crash left, and nothing that is still needed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from plimsoll_runtime.api.batches.file_store import BATCHES, COMING_SECONDS, DATA, FILES, FileStore
from plimsoll_runtime.api.batches.records import (
    CANCELLED,
    IN_PROGRESS,
    OUTPUT,
    BatchAnswer,
    FileAnswer,
    KeptBatch,
    KeptFile,
)

OWNER = "one"


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path, 2**20)


def data_of(store: FileStore, name: str, age: float) -> Path:
    store.make_folder(OWNER, FILES)
    path = store.path(OWNER, FILES, name, DATA)
    path.write_bytes(b"{}")
    os.utime(path, (time.time() - age,) * 2)
    return path


def batch_of(store: FileStore) -> KeptBatch:
    now = int(time.time())
    told = BatchAnswer(
        id=store.new_id(BATCHES),
        endpoint="/v1/completions",
        input_file_id="file-1",
        created_at=now,
        expires_at=now + 60,
    )
    return KeptBatch(told, owner=OWNER, tenant="")


def test_data_without_a_record_is_deleted_after_an_hour(store: FileStore) -> None:
    name = store.new_id(FILES)
    recorded = data_of(store, name, COMING_SECONDS + 60)
    store.keep_record(OWNER, KeptFile(FileAnswer(name, 2, int(time.time()), "a.jsonl", OUTPUT)))
    late, left = data_of(store, "file-2", COMING_SECONDS - 60), data_of(store, "file-3", COMING_SECONDS + 60)
    assert store.used_bytes() == 6
    store.sweep()
    assert (recorded.exists(), late.exists(), left.exists()) == (True, True, False)
    assert store.used_bytes() == 4


def test_the_output_of_an_open_batch_waits_for_its_record(store: FileStore) -> None:
    batch = batch_of(store)
    batch.told.status = IN_PROGRESS
    store.keep_batch(batch)
    output = data_of(store, store.output_id(batch.told.id, "output"), COMING_SECONDS + 60)
    store.sweep()
    assert output.exists()
    batch.told.status = CANCELLED
    store.keep_batch(batch)
    store.sweep()
    assert not output.exists()


def test_the_end_of_a_batch_removes_its_cancellation(store: FileStore) -> None:
    batch = batch_of(store)
    store.keep_batch(batch)
    store.cancel(batch)
    assert store.cancelled_at(OWNER, batch.told.id) is not None
    batch.told.status = CANCELLED
    store.keep_batch(batch)
    assert store.cancelled_at(OWNER, batch.told.id) is None
