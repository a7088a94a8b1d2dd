"""Whatever is killed and when, each row is in the files once, and in order if requested."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from plimsoll_runtime.batch.job import Answered
from plimsoll_runtime.batch.output_paths import OutputPaths
from plimsoll_runtime.batch.store import ANSWERS, ERRORS, JOURNAL, Store
from plimsoll_runtime.errors import UsageError

JOB = {"inputs": [], "seed": 0}
ROWS = 40


def answered(number: int) -> Answered:
    return Answered(number, b"row %d " % number + b"x" * (number % 7), number % 5 == 3, number, 1, 2)


def opened(folder: Path, *, ordered: bool = True, **options: int) -> Store:
    return Store(OutputPaths(folder / "out.jsonl"), JOB, ordered=ordered, created=17, clock=lambda: 0.0, **options)


def lines(folder: Path) -> tuple[list[bytes], list[bytes]]:
    work = OutputPaths(folder / "out.jsonl").work
    answers, errors = ((work / name).read_bytes().splitlines() for name in (ANSWERS, ERRORS))
    return answers, errors


class Stores(RuleBasedStateMachine):
    """A store that is opened, filled in any order, killed, and may lose what was not synced."""

    @initialize(ordered=st.booleans())
    def begin(self, ordered: bool) -> None:
        self.stack = contextlib.ExitStack()
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.ordered = ordered
        self.missing = set(range(ROWS))
        self.safe: set[int] = set()
        self.store = self._open()
        self.synced = self._journal().stat().st_size

    def teardown(self) -> None:
        self.store.close()
        self.stack.close()

    def _open(self) -> Store:
        return opened(self.folder, ordered=self.ordered, mark_bytes=10**9, kept_bytes=600)

    def _journal(self) -> Path:
        return OutputPaths(self.folder / "out.jsonl").work / JOURNAL

    @precondition(lambda self: self.missing)
    @rule(data=st.data(), count=st.integers(1, 8))
    def take(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.missing))):
            number = data.draw(st.sampled_from(sorted(self.missing)))
            self.missing.remove(number)
            self.store.take(answered(number))

    @rule()
    def mark(self) -> None:
        self.store.mark()
        self.safe = set(range(ROWS)) - self.missing
        self.synced = self._journal().stat().st_size

    @rule()
    def kill(self) -> None:
        """Kill the process: everything flushed is there."""
        self.store.flush()
        self.safe = set(range(ROWS)) - self.missing
        self.store.close()
        self._open_again()

    @rule(data=st.data())
    def lose_power(self, data: st.DataObject) -> None:
        """Cut the power: everything that was not synced may be gone, also a part of a record."""
        self.store.flush()
        self.store.close()
        path = self._journal()
        keep = data.draw(st.integers(self.synced, path.stat().st_size))
        with path.open("r+b") as file:
            file.truncate(keep)
        self._open_again()

    def _open_again(self) -> None:
        self.store = self._open()
        self.missing = {number for number in range(ROWS) if number not in self.store.done}
        assert not self.safe & self.missing
        self.safe = set(range(ROWS)) - self.missing
        self.synced = self._journal().stat().st_size

    @invariant()
    def whole(self) -> None:
        self.store.check_integrity()
        assert len(self.store.done) == ROWS - len(self.missing)

    @precondition(lambda self: not self.missing)
    @rule()
    def finish(self) -> None:
        end = self.store.finish()
        answers, errors = lines(self.folder)
        wanted = [answered(number) for number in range(ROWS)]
        assert end.tally.rows == ROWS
        assert end.tally.failed == len(errors) == 8
        assert end.tally.prompt_tokens == sum(range(ROWS))
        if not self.ordered:
            answers, errors = sorted(answers), sorted(errors)
        good, bad = ([row.line for row in wanted if row.failed is failed] for failed in (False, True))
        assert (answers, errors) == ((good, bad) if self.ordered else (sorted(good), sorted(bad)))
        self.store.close()
        self.store = self._open()
        assert self.store.end == end


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as made:
        yield made


def test_one_process_at_a_time(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="another run is writing"):
        opened(tmp_path)


def test_another_job_is_refused_by_what_differs(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(UsageError, match=r"another run \(seed differ\)"):
        Store(OutputPaths(tmp_path / "out.jsonl"), JOB | {"seed": 1}, ordered=True, created=17)


def test_when_it_began_is_kept(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with Store(OutputPaths(tmp_path / "out.jsonl"), JOB, ordered=True, created=99) as store:
        assert store.created == 17


def test_what_was_safe_and_is_gone_is_told(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.take(answered(0))
        store.mark()
    (OutputPaths(tmp_path / "out.jsonl").work / ANSWERS).write_bytes(b"")
    with pytest.raises(UsageError, match="has lost data since the last run"):
        opened(tmp_path)


def test_the_journal_stays_short(tmp_path: Path) -> None:
    with opened(tmp_path, kept_bytes=10_000) as store:
        for number in range(2_000):
            store.take(answered(number))
            if number % 50 == 0:
                store.mark()
        journal = OutputPaths(tmp_path / "out.jsonl").work / JOURNAL
        assert journal.stat().st_size < 20_000
