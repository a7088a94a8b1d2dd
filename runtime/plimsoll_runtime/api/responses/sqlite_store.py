"""The response store: a SQLite database, in memory or in a file that outlives the process."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

from plimsoll_runtime.api.responses.shares import OVERHEAD, Shares, StoredResponse
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.options import ResponseBounds

FORM = 1
"""The version of the tables. A file with another version is refused."""
_APPLICATION = 0x506C526B  # "PlRk", in the file's header
_TABLES = """
CREATE TABLE responses (
  id TEXT PRIMARY KEY, owner TEXT NOT NULL, previous TEXT, response BLOB NOT NULL, input BLOB NOT NULL,
  events BLOB NOT NULL, running INTEGER NOT NULL, size INTEGER NOT NULL, used REAL NOT NULL, turn INTEGER NOT NULL
);
CREATE UNIQUE INDEX by_turn ON responses (turn);
"""


class _NoRoomError(Exception):
    """The new response does not fit next to the shares of other owners."""


class SqliteStore:
    """A store, used by one thread at a time. In a file, stored responses survive a crash of the process; a crash of the
    machine may lose the last ones, but never damages the file. One server can use a file at a time."""

    def __init__(self, path: Path | None, bounds: ResponseBounds, clock: Callable[[], float] = time.time) -> None:
        """Open or create the file; without a `path` the store is in memory. `clock` returns seconds since the epoch.
        Raises UsageError if the file cannot be used, or has another format."""
        self._bounds = bounds
        self._clock = clock
        self._shares, self._turn = Shares(bounds), 0
        try:
            if path is not None:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._file = sqlite3.connect(path or ":memory:", timeout=0, check_same_thread=False)
            try:
                self._open()
            except BaseException:
                self._file.close()
                raise
        except (OSError, sqlite3.Error) as error:
            raise UsageError(f"--response-store {path} cannot be used ({error}); choose another file") from error

    def put(self, kept: StoredResponse) -> bool:
        """Store a response, replacing one with its id, and delete expired ones and those above the limits. Return False
        if it does not fit next to the shares of other owners: then only the one with its id is deleted."""
        try:
            with self._changing():
                self._drop(kept.id)
                self._insert(kept)
                self._make_room(kept.id)
        except _NoRoomError:
            with self._changing():
                self._drop(kept.id)
            return False
        return True

    def get(self, response: str, owner: str) -> StoredResponse | None:
        """Return the response with that id, None if it does not exist, has expired or belongs to another owner."""
        row = self._file.execute(
            "SELECT id, owner, previous, response, input, events, running FROM responses "
            "WHERE id = ? AND owner = ? AND used >= ?",
            (response, owner, self._clock() - self._bounds.seconds),
        ).fetchone()
        if row is None:
            return None
        own, whose, previous, told, given, events, running = row
        return StoredResponse(own, whose, previous, told, given, events, bool(running))

    def use(self, responses: Sequence[str]) -> None:
        """Mark responses as used now, the last one as most recently used. Missing and expired ones are ignored."""
        now = self._clock()
        with self._changing():
            for response in responses:
                self._turn += 1
                self._file.execute(
                    "UPDATE responses SET used = ?, turn = ? WHERE id = ? AND used >= ?",
                    (now, self._turn, response, now - self._bounds.seconds),
                )

    def delete(self, response: str, owner: str) -> bool:
        """Delete a response of the owner; return whether it existed."""
        there = self.get(response, owner) is not None
        if there:
            with self._changing():
                self._drop(response)
        return there

    def close(self) -> None:
        """Close the store."""
        self._file.close()

    def _open(self) -> None:
        # With an exclusive lock the write-ahead log needs no shared memory, so it works on any volume.
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
            raise sqlite3.DatabaseError("it belongs to another program, or to another version")
        self._count()
        with self._changing():
            self._make_room()

    def _count(self) -> None:
        self._shares = Shares(self._bounds)
        for owner, (count, size) in self._parts().items():
            self._shares.add(owner, size, count)
        (self._turn,) = self._file.execute("SELECT coalesce(max(turn), 0) FROM responses").fetchone()

    def _parts(self) -> dict[str, tuple[int, int]]:
        rows = self._file.execute("SELECT owner, count(*), sum(size) FROM responses GROUP BY owner")
        return {owner: (count, size) for owner, count, size in rows}

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Apply all changes of the block in one transaction; after an error, recount the shares."""
        try:
            with self._file:
                yield
        except BaseException:
            self._count()
            raise

    def _insert(self, kept: StoredResponse) -> None:
        self._turn += 1
        row = (kept.id, kept.owner, kept.previous, kept.response, kept.input, kept.events, kept.running, kept.size)
        self._file.execute(
            "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, self._clock(), self._turn)
        )
        self._shares.add(kept.owner, kept.size)

    def _make_room(self, newest: str | None = None) -> None:
        """Delete expired responses, and those above the limits. Raises _NoRoomError if `newest` would be one of
        them."""
        oldest_allowed = self._clock() - self._bounds.seconds
        old = self._file.execute("SELECT id, used FROM responses ORDER BY turn")
        for response in [id_ for id_, _ in takewhile(lambda row: row[1] < oldest_allowed, old)]:
            self._drop(response)
        if self._shares.fit:
            return
        lost = self._shares.losers(self._file.execute("SELECT id, owner, size FROM responses ORDER BY turn"))
        if newest in lost:
            raise _NoRoomError
        for response in lost:
            self._drop(response)

    def _drop(self, response: str) -> None:
        found = self._file.execute("DELETE FROM responses WHERE id = ? RETURNING owner, size", (response,)).fetchone()
        if found is not None:
            self._shares.drop(*found)

    def check_integrity(self) -> None:
        """Raise AssertionError if records contradict each other, or a limit is exceeded."""
        self._shares.check_integrity(self._parts())
        (turn,) = self._file.execute("SELECT coalesce(max(turn), 0) FROM responses").fetchone()
        assert turn <= self._turn, "a turn is above the last one"
        wrong = self._file.execute(
            "SELECT count(*) FROM responses WHERE size != ? + length(response) + length(input) + length(events)",
            (OVERHEAD,),
        ).fetchone()[0]
        assert wrong == 0, f"{wrong} sizes are wrong"
        assert self._file.execute("PRAGMA integrity_check").fetchone() == ("ok",), "the file is damaged"
