"""A folder of files and batches, each visible to its owner only. Several servers may share it.

Each owner has a subfolder named by a hash. A file exists once its record exists, which is written last; data without
a record is the rest of an interrupted upload.
"""

from __future__ import annotations

import fcntl
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from plimsoll_runtime.api.batches.records import FINAL, KeptBatch, KeptFile
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.batch.output_paths import OutputPaths, write_durably
from plimsoll_runtime.errors import UsageError

logger = logging.getLogger(__name__)

FILES, BATCHES, STORE = "files", "batches", "store"
MAKING = "making"
RECORD, DATA, WORK, OPEN, CANCEL, COMING = ".json", ".data", ".jsonl", ".open", ".cancel", ".coming"
KEPT_SECONDS = 30 * 86_400.0
"""Seconds after a batch was created until `sweep` deletes its record, if it has ended."""
COMING_SECONDS = 3600.0
"""Age above which an upload without a record counts as interrupted."""

KeptT = TypeVar("KeptT", KeptFile, KeptBatch)
_PREFIX: Final = {FILES: "file-", BATCHES: "batch_"}


class FileStore:
    """The folder. All methods wait for the disk and must not run on the event loop, except `new_id`, `folder`,
    `path` and `places`, which only build names."""

    def __init__(self, root: Path, most_bytes: int) -> None:
        """Open the folder. Raises UsageError if it cannot be written."""
        self._root = root
        self.most_bytes = most_bytes
        try:
            root.mkdir(parents=True, exist_ok=True)
            self.store = _store_of(root)
        except OSError as error:
            raise UsageError(
                f"--files-dir {root} cannot be used: {error}; choose a folder that the server can write"
            ) from error

    def new_id(self, kind: str) -> str:
        """Return a new id of a file or batch: a prefix, the name of this store (see `_store_of`) and random hex
        digits."""
        return f"{_PREFIX[kind]}{self.store}{secrets.token_hex(12)}"

    @staticmethod
    def output_id(batch: str, what: str) -> str:
        """Return the id of a batch's output or error file (`what`: "output" or "errors"). A batch always gets the same
        ids, so publishing its files again makes no second file."""
        return f"{_PREFIX[FILES]}{batch.removeprefix(_PREFIX[BATCHES])}{what}"

    def folder(self, owner: str, kind: str) -> Path:
        """Return the path of an owner's files or batches. It may not exist yet."""
        return self._root / sha256(owner.encode()).hexdigest()[:32] / kind

    def make_folder(self, owner: str, kind: str) -> None:
        """Create the folder of an owner's files or batches."""
        self.folder(owner, kind).mkdir(parents=True, exist_ok=True)

    def path(self, owner: str, kind: str, name: str, suffix: str) -> Path:
        """Return the path of the record, data or marker (by `suffix`) of the file or batch with the id `name`."""
        return self.folder(owner, kind) / f"{name}{suffix}"

    def places(self, owner: str, name: str) -> OutputPaths:
        """Return the paths of a batch's run. Its work folder has the results until they become files of the owner."""
        return OutputPaths(self.path(owner, BATCHES, name, WORK))

    def file(self, owner: str, name: str) -> KeptFile:
        """Return a file's record. Raises ApiError (404) if it does not exist, has expired or belongs to another
        owner."""
        kept = self._read(owner, FILES, name, KeptFile)
        if kept is None or kept.is_over(time.time()):
            raise _unknown("file", name)
        return kept

    def batch(self, owner: str, name: str) -> KeptBatch:
        """Return a batch's record. Raises ApiError (404) if it does not exist or belongs to another owner."""
        kept = self._read(owner, BATCHES, name, KeptBatch)
        if kept is None:
            raise _unknown("batch", name)
        return kept

    def files(self, owner: str) -> list[KeptFile]:
        """Return the owner's files, the newest first."""
        now = time.time()
        kept = [each for each in self._all(self.folder(owner, FILES), KeptFile) if not each.is_over(now)]
        return sorted(kept, key=_age, reverse=True)

    def batches(self, owner: str) -> list[KeptBatch]:
        """Return the owner's batches, the newest first."""
        return sorted(self._all(self.folder(owner, BATCHES), KeptBatch), key=_age, reverse=True)

    def unfinished(self) -> list[KeptBatch]:
        """Return the batches of all owners that have not ended, the oldest first."""
        opened = self._root.glob(f"*/{BATCHES}/*{OPEN}")
        found = [each for path in opened if (each := _read(path.with_suffix(RECORD), KeptBatch)) is not None]
        return sorted(found, key=_age)

    def keep_file(self, owner: str, kept: KeptFile, data: Path) -> None:
        """Make a file visible: move its content from the path `data`, which the caller has synced, into place, and
        write its record."""
        data.replace(self.path(owner, FILES, kept.told.id, DATA))
        self.keep_record(owner, kept)

    def keep_record(self, owner: str, kept: KeptFile) -> None:
        """Write the record of a file whose data is in place."""
        write_durably(self.path(owner, FILES, kept.told.id, RECORD), msgspec.json.encode(kept))

    def keep_batch(self, kept: KeptBatch) -> None:
        """Write the batch's record. A batch that has not ended gets a marker file (OPEN); one that has ended loses it,
        and the marker of a cancellation (CANCEL)."""
        is_open = self.path(kept.owner, BATCHES, kept.told.id, OPEN)
        if kept.told.status not in FINAL:
            self.make_folder(kept.owner, BATCHES)
            is_open.touch()
        write_durably(self.path(kept.owner, BATCHES, kept.told.id, RECORD), msgspec.json.encode(kept))
        if kept.told.status in FINAL:
            self.path(kept.owner, BATCHES, kept.told.id, CANCEL).unlink(missing_ok=True)
            is_open.unlink(missing_ok=True)

    @contextmanager
    def making(self, owner: str) -> Iterator[None]:
        """Hold the lock for creating batches of an owner, across all servers."""
        self.make_folder(owner, BATCHES)
        with (self.folder(owner, BATCHES) / MAKING).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def cancel(self, kept: KeptBatch) -> None:
        """Mark a batch as cancelled. The worker that runs it, maybe on another server, then ends it."""
        self.path(kept.owner, BATCHES, kept.told.id, CANCEL).touch()

    def cancelled_at(self, owner: str, name: str) -> int | None:
        """Return the Unix time at which `cancel` marked the batch; None if it did not, or if the batch has ended."""
        try:
            return int(self.path(owner, BATCHES, name, CANCEL).stat().st_mtime)
        except FileNotFoundError:
            return None

    def drop_file(self, owner: str, name: str) -> None:
        """Delete a file. Raises ApiError (404)."""
        self.file(owner, name)
        for suffix in (RECORD, DATA):
            self.path(owner, FILES, name, suffix).unlink(missing_ok=True)

    def used_bytes(self) -> int:
        """Return the size of all owners' files in bytes, including uploads in progress."""
        return sum(self._size(path) for path in self._root.glob(f"*/{FILES}/*") if path.suffix in (DATA, COMING))

    def sweep(self) -> None:
        """Delete expired files, the records of ended batches KEPT_SECONDS after their creation, and, after
        COMING_SECONDS without a change, interrupted uploads and data that never got its record.

        The output of an open batch stays: its record is written when a server continues the batch.
        """
        now = time.time()
        for path in self._without_record():
            with suppress(FileNotFoundError):
                if now - path.stat().st_mtime > COMING_SECONDS:
                    path.unlink()
        for path in self._root.glob(f"*/{FILES}/*{RECORD}"):
            if (file := _read(path, KeptFile)) is not None and file.is_over(now):
                path.unlink(missing_ok=True)
                path.with_suffix(DATA).unlink(missing_ok=True)
        for path in self._root.glob(f"*/{BATCHES}/*{RECORD}"):
            batch = _read(path, KeptBatch)
            if batch is not None and batch.told.status in FINAL and now - batch.told.created_at > KEPT_SECONDS:
                path.unlink(missing_ok=True)

    def _without_record(self) -> Iterator[Path]:
        """Yield uploads in progress, and data without a record that no open batch will write."""
        yield from self._root.glob(f"*/{FILES}/*{COMING}")
        outputs = tuple(self.output_id(batch.told.id, "") for batch in self.unfinished())
        for path in self._root.glob(f"*/{FILES}/*{DATA}"):
            if not path.with_suffix(RECORD).exists() and not path.name.startswith(outputs):
                yield path

    def _read(self, owner: str, kind: str, name: str, form: type[KeptT]) -> KeptT | None:
        return _read(self.path(owner, kind, name, RECORD), form) if _is_name(kind, name) else None

    def _all(self, folder: Path, form: type[KeptT]) -> Iterator[KeptT]:
        for path in folder.glob(f"*{RECORD}"):
            if (kept := _read(path, form)) is not None:
                yield kept

    @staticmethod
    def _size(path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0


def _read(path: Path, form: type[KeptT]) -> KeptT | None:
    """Return a record; None if it does not exist or was written by another version."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=form)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        logger.warning("%s is not a record that this version can read: %s", path, error)
        return None


def _age(kept: KeptFile | KeptBatch) -> tuple[int, str]:
    """Return the sort key by age, the oldest first."""
    return kept.told.created_at, kept.told.id


def _is_name(kind: str, name: str) -> bool:
    """Return whether `name` has the form of our ids; anything else could be a path to another file."""
    rest = name.removeprefix(_PREFIX[kind])
    return name != rest and rest.isascii() and rest.isalnum() and len(rest) <= 64


def _store_of(root: Path) -> str:
    """Return the store's own name, which the first server creates and all servers that share the store read."""
    path = root / STORE
    fresh = root / f"{STORE}.{secrets.token_hex(4)}"
    if not path.exists():
        fresh.write_text(secrets.token_hex(4))
        with suppress(FileExistsError):
            path.hardlink_to(fresh)
        fresh.unlink()
    return path.read_text().strip()


def _unknown(what: str, name: str) -> ApiError:
    return ApiError(
        f"There is no {what} '{name[:200]}'.", status=HTTPStatus.NOT_FOUND, param=f"{what}_id", code="not_found"
    )
