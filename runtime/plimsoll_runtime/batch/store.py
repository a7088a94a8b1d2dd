"""The results of a run on disk: a journal, the set of finished rows, and output files that survive a crash."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from plimsoll_runtime.batch.job import Answered, Tally, check_same
from plimsoll_runtime.batch.journal import Begin, End, GrowingFile, Journal, Mark, Place
from plimsoll_runtime.batch.output_paths import OutputPaths, sync
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils import folder_lock


class Done:
    """A set of row numbers: all below `upto`, and those in `beyond`."""

    __slots__ = ("beyond", "upto")

    def __init__(self, upto: int = 0, beyond: Iterable[int] = ()) -> None:
        self.upto = upto
        self.beyond = set(beyond)

    def __contains__(self, number: int) -> bool:
        return number < self.upto or number in self.beyond

    def __len__(self) -> int:
        return self.upto + len(self.beyond)

    def add(self, number: int) -> None:
        """Add a number that is not in the set."""
        assert number not in self, f"row {number} is done twice"
        self.beyond.add(number)
        while self.upto in self.beyond:
            self.beyond.remove(self.upto)
            self.upto += 1

    def check_integrity(self) -> None:
        """Raise AssertionError if a number in `beyond` is not above `upto`."""
        assert all(number > self.upto for number in self.beyond), (self.upto, self.beyond)


PIECE = 2**17
"""Bytes that are buffered before a write."""


class JobFile(GrowingFile):
    """An open file of lines. Lines that are still in the buffer are lost with the process, and lines that were not
    synced with the machine.
    """

    def __init__(self, path: Path, size: int) -> None:
        """Open or create the file and truncate it to `size` bytes. Raises UsageError if it is shorter."""
        super().__init__(path)
        if self.size < size:
            self.close()
            raise UsageError(
                f"{path} has lost data since the last run (it is shorter than recorded); start over with --restart"
            )
        self._cut(size)

    def add(self, line: bytes) -> None:
        """Append a line."""
        self._rest += line
        self._rest += b"\n"
        if len(self._rest) >= PIECE:
            self.flush()


LOCK, JOURNAL, ANSWERS, ERRORS = "lock", "journal", "answers.jsonl", "errors.jsonl"
MARK_SECONDS = 5.0
MARK_BYTES = 16 * 2**20
"""Growth of the journal after which a mark is due. It bounds what a crash of the machine can lose, and what a
resumed run writes again."""
KEPT_BYTES = 64 * 2**20
"""Length of the journal above which a mark rewrites it with only the records that are still needed."""


class BusyError(UsageError):
    """Another process is using the work folder."""


class Store:
    """The results of one run. A context manager; only one process at a time can open it (BusyError).

    `take` adds a result to the journal; after the next `flush` it survives the process. Its line is appended to the
    output or error file; if `ordered`, as soon as all earlier ones are there. Every few seconds `mark` syncs both
    files, writes their lengths into the journal and syncs the journal. Opening the store again truncates both files to
    the last mark and rewrites later results from the journal.
    """

    def __init__(
        self,
        places: OutputPaths,
        job: Mapping[str, Any],
        *,
        ordered: bool,
        created: int,
        clock: Callable[[], float] = time.monotonic,
        mark_bytes: int = MARK_BYTES,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        """Open the work folder of this job, or start it at the Unix time `created`. Raises UsageError if it belongs
        to another job."""
        self._places = places
        self._ordered = ordered
        self._clock = clock
        self._mark_bytes, self._kept_bytes = mark_bytes, kept_bytes
        places.work.mkdir(exist_ok=True)
        lock = folder_lock.lock(places.work, LOCK, make=True)
        if lock is None:
            raise _busy(places)
        self._lock = lock
        self._journal = Journal(places.work / JOURNAL)
        self._parts: list[JobFile] = []
        self._begin = Begin(dict(job), created)
        self._pending: dict[int, Place] = {}
        self.done = Done()
        self.tally = Tally()
        self.end: End | None = None
        self._seconds = 0.0
        self._began: float | None = None
        self._marked, self._marked_at = 0, clock()
        try:
            self._recover()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files. The work folder stays and loses nothing: results that are in no file yet are in the
        journal."""
        for part in self._parts:
            part.close()
        self._journal.close()
        os.close(self._lock)

    @property
    def created(self) -> int:
        """Unix time when the job's first run began."""
        return self._begin.created

    @property
    def seconds(self) -> float:
        """Working time of all runs together, in seconds."""
        return self._seconds + (0.0 if self._began is None else self._clock() - self._began)

    @property
    def due(self) -> bool:
        """Whether a mark is due."""
        late = self._clock() - self._marked_at >= MARK_SECONDS and self._journal.size > self._marked
        return late or self._journal.size - self._marked >= self._mark_bytes

    def start(self) -> None:
        """Start the clock of the working time, after the model is loaded."""
        self._began = self._clock()

    def take(self, answered: Answered) -> None:
        """Record a result."""
        place = self._journal.add(answered)
        self.done.add(answered.number)
        if self._ordered and answered.number != self.tally.rows:
            self._pending[answered.number] = place
            return
        self._write(answered)
        self._write_pending()

    def flush(self) -> None:
        """Write the journal, so that all results so far survive this process."""
        self._journal.flush()

    def mark(self) -> None:
        """Sync all results so far and write a mark."""
        for part in self._parts:
            part.sync()
        answers, errors = (part.size for part in self._parts)
        beyond = [] if self._ordered else sorted(self.done.beyond)
        upto = self.tally.rows if self._ordered else self.done.upto
        mark = Mark(upto, beyond, answers, errors, self.tally, self.seconds)
        if self._journal.size > self._kept_bytes:
            self._shorten(mark)
        else:
            self._journal.add(mark)
            self._journal.sync()
        self._marked, self._marked_at = self._journal.size, self._clock()

    def finish(self) -> End:
        """Record that every row is done, and sync."""
        assert not self._pending, "rows without a result"
        if self.end is None:
            self.mark()
            self.end = End(self.tally, self.seconds)
            self._journal.add(self.end)
            self._journal.sync()
        return self.end

    def remove(self) -> None:
        """Delete the work folder, once all files are at their final paths."""
        folder_lock.remove(self._places.work, LOCK)

    def check_integrity(self) -> None:
        """Raise AssertionError if records disagree."""
        self.done.check_integrity()
        assert self.tally.rows + len(self._pending) == len(self.done)
        assert self._ordered or not self._pending
        assert all(number > self.tally.rows for number in self._pending)

    def _recover(self) -> None:
        """Read the journal, and restore the files to the state that it describes."""
        mark = Mark(0, [], 0, 0, Tally(), 0.0)
        begun = False
        since: dict[int, Place] = {}
        for place, record in self._journal.records():
            match record:
                case Begin():
                    check_same(self._begin.job, record.job, str(self._places.work))
                    self._begin, begun = record, True
                case Answered():
                    since[record.number] = place
                case Mark():
                    mark = record
                    since = {n: p for n, p in since.items() if self._ordered and n >= mark.upto}
                case End():
                    self.end = record
        self.tally, self._seconds, self.done = mark.tally, mark.seconds, Done(mark.upto, mark.beyond)
        if self.end is not None:  # the files may have been moved already
            return
        self._parts.append(JobFile(self._places.work / ANSWERS, mark.answers))
        self._parts.append(JobFile(self._places.work / ERRORS, mark.errors))
        if not begun:
            self._journal.add(self._begin)
            sync(self._places.work)
            sync(self._places.work.parent)
        for number, place in since.items():
            self.done.add(number)
            if self._ordered:
                self._pending[number] = place
            else:
                self._write(self._answered(place))
        self._write_pending()
        self.mark()

    def _write(self, answered: Answered) -> None:
        self._parts[answered.failed].add(answered.line)
        self.tally = self.tally.plus(answered)

    def _write_pending(self) -> None:
        while (place := self._pending.pop(self.tally.rows, None)) is not None:
            self._write(self._answered(place))

    def _answered(self, place: Place) -> Answered:
        record = self._journal.read(place)
        assert isinstance(record, Answered)
        return record

    def _shorten(self, mark: Mark) -> None:
        """Replace the journal by one that has only the records that are still needed."""
        path = self._journal.path
        fresh_path = path.with_name(f"{JOURNAL}.new")
        fresh_path.unlink(missing_ok=True)
        fresh = Journal(fresh_path)
        fresh.add(self._begin)
        fresh.add(mark)
        self._pending = {number: fresh.add(self._answered(place)) for number, place in self._pending.items()}
        fresh.sync()
        fresh_path.replace(path)
        sync(path.parent)
        fresh.path = path
        self._journal.close()
        self._journal = fresh


def discard(places: OutputPaths) -> None:
    """Delete the work folder and the files of a complete run. Raises UsageError if a run is using them."""
    try:
        held = folder_lock.lock(places.work, LOCK, make=places.work.exists())
    except FileNotFoundError:
        held = -1
    if held is None:
        raise _busy(places)
    if held >= 0:
        folder_lock.remove(places.work, LOCK)
        os.close(held)
    for path in places.made:
        path.unlink(missing_ok=True)


def _busy(places: OutputPaths) -> BusyError:
    return BusyError(f"another run is writing {places.output}; wait until it ends, or choose another OUTPUT")
