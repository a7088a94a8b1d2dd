"""A shelf in a SQLite file, which outlives the process. One server has it at a time."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from plimsoll_runtime.api.responses.store import OVERHEAD, Bounds, Clock, Kept
from plimsoll_runtime.errors import UsageError

FORM = 1
"""The version of the tables. A file of another one is refused."""
_APPLICATION = 0x506C526B  # "PlRk", in the file's header
_TABLES = """
CREATE TABLE responses (
  id TEXT PRIMARY KEY, owner TEXT NOT NULL, previous TEXT, response BLOB NOT NULL, input BLOB NOT NULL,
  events BLOB NOT NULL, running INTEGER NOT NULL, size INTEGER NOT NULL, used REAL NOT NULL, turn INTEGER NOT NULL
);
CREATE UNIQUE INDEX by_turn ON responses (turn);
"""


class SqliteShelf:
    """With a write-ahead log. What was kept is there after a crash of the process; a crash of the machine may take the
    last of it, and never leaves a file that cannot be read.
    """

    def __init__(self, path: Path, bounds: Bounds, clock: Clock = time.time) -> None:
        """Raises UsageError where the file cannot be had, or is another's."""
        self._bounds = bounds
        self._clock = clock
        self._count = self._bytes = self._turn = 0
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._file = sqlite3.connect(path, timeout=0, check_same_thread=False)
            try:
                self._open()
            except BaseException:
                self._file.close()
                raise
        except (OSError, sqlite3.Error) as error:
            raise UsageError(f"--response-store {path} cannot be used ({error}); give another file") from error

    def put(self, kept: Kept) -> bool:
        """Keep it, in place of what has its id. False where it alone is beyond the bound."""
        with self._changing():
            self._drop(kept.id)
            if kept.size > self._bounds.bytes:
                return False
            self._turn += 1
            row = (kept.id, kept.owner, kept.previous, kept.response, kept.input, kept.events, kept.running, kept.size)
            self._file.execute(
                "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, self._clock(), self._turn)
            )
            self._count, self._bytes = self._count + 1, self._bytes + kept.size
            self._make_room()
        return True

    def get(self, response: str, owner: str) -> Kept | None:
        """The one of that id, if it is the owner's."""
        row = self._file.execute(
            "SELECT id, owner, previous, response, input, events, running FROM responses "
            "WHERE id = ? AND owner = ? AND used >= ?",
            (response, owner, self._clock() - self._bounds.seconds),
        ).fetchone()
        if row is None:
            return None
        own, whose, previous, told, given, events, running = row
        return Kept(own, whose, previous, told, given, events, bool(running))

    def use(self, responses: Sequence[str]) -> None:
        """They were used now, the last of them last."""
        now = self._clock()
        with self._changing():
            for response in responses:
                self._turn += 1
                self._file.execute(
                    "UPDATE responses SET used = ?, turn = ? WHERE id = ? AND used >= ?",
                    (now, self._turn, response, now - self._bounds.seconds),
                )

    def delete(self, response: str, owner: str) -> bool:
        """Forget it, if it is the owner's; whether it was there."""
        there = self.get(response, owner) is not None
        if there:
            with self._changing():
                self._drop(response)
        return there

    def close(self) -> None:
        """Give the file back."""
        self._file.close()

    def _open(self) -> None:
        # Nobody else may have the file, so that its log needs no memory shared with others: that works on any volume.
        self._file.executescript(
            "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
        )
        (application,), (form,) = (
            self._file.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
        tables = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not tables:
            self._file.executescript(
                f"BEGIN; {_TABLES} PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {FORM}; COMMIT;"
            )
        elif (application, form) != (_APPLICATION, FORM):
            raise sqlite3.DatabaseError("it is another program's, or of another version")
        self._count, self._bytes, self._turn = self._totals()
        with self._changing():
            self._make_room()

    def _totals(self) -> tuple[int, int, int]:
        count, size, turn = self._file.execute(
            "SELECT count(*), coalesce(sum(size), 0), coalesce(max(turn), 0) FROM responses"
        ).fetchone()
        return count, size, turn

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """All of the block's changes, or none of them and none of their counts."""
        try:
            with self._file:
                yield
        except BaseException:
            self._count, self._bytes, self._turn = self._totals()
            raise

    def _make_room(self) -> None:
        oldest_allowed = self._clock() - self._bounds.seconds
        while self._count:
            first, used = self._file.execute("SELECT id, used FROM responses ORDER BY turn LIMIT 1").fetchone()
            full = self._count > self._bounds.count or self._bytes > self._bounds.bytes
            if not full and used >= oldest_allowed:
                return
            self._drop(first)

    def _drop(self, response: str) -> None:
        found = self._file.execute("DELETE FROM responses WHERE id = ? RETURNING size", (response,)).fetchone()
        if found is not None:
            self._count, self._bytes = self._count - 1, self._bytes - found[0]

    def check_integrity(self) -> None:
        """Raises AssertionError where its records contradict each other, or a bound is not kept."""
        count, size, turn = self._totals()
        counted = self._count, self._bytes
        assert counted == (count, size), f"{counted} responses and bytes are counted, {count, size} are there"
        assert turn <= self._turn, "a turn that has not come"
        assert count <= self._bounds.count, f"{count} responses"
        assert size <= self._bounds.bytes, f"{size} bytes"
        wrong = self._file.execute(
            "SELECT count(*) FROM responses WHERE size != ? + length(response) + length(input) + length(events)",
            (OVERHEAD,),
        ).fetchone()[0]
        assert wrong == 0, f"{wrong} sizes are wrong"
        assert self._file.execute("PRAGMA integrity_check").fetchone() == ("ok",), "the file is damaged"
