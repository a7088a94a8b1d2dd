"""Response stores in memory and in a file behave the same, and enforce their limits."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.responses import store as store_module
from plimsoll_runtime.api.responses.shares import OVERHEAD, StoredResponse
from plimsoll_runtime.api.responses.sqlite_store import SqliteStore
from plimsoll_runtime.api.responses.store import ResponseStore
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.options import DAY_SECONDS, ResponseBounds

BOUNDS = ResponseBounds(count=4, bytes=4 * OVERHEAD + 60, days=100 / DAY_SECONDS)
OWNERS = st.sampled_from(["a", "b", "c"])
IDS = st.sampled_from([f"resp_{number}" for number in range(7)])


def kept(
    response: str = "resp_1", owner: str = "a", text: bytes = b"{}", previous: str | None = None
) -> StoredResponse:
    return StoredResponse(response, owner, previous, text, b"[]")


def parts_of(places: list[tuple[StoredResponse, float]]) -> dict[str, tuple[int, int]]:
    """Return the number and bytes of each owner's responses."""
    sizes: dict[str, list[int]] = {}
    for one, _ in places:
        sizes.setdefault(one.owner, []).append(one.size)
    return {owner: (len(each), sum(each)) for owner, each in sizes.items()}


def crowded(places: list[tuple[StoredResponse, float]], bounds: ResponseBounds) -> list[tuple[StoredResponse, float]]:
    """Return the responses that stay: the oldest goes of owners above their own limit, or above an even share."""
    while True:
        parts = parts_of(places)
        too_many = len(places) > bounds.count
        too_large = sum(size for _, size in parts.values()) > bounds.bytes

        def gives(
            one: StoredResponse,
            parts: dict[str, tuple[int, int]] = parts,
            many: bool = too_many,
            large: bool = too_large,
        ) -> bool:
            count, size = parts[one.owner]
            return (
                count > bounds.count_of_one
                or size > bounds.bytes_of_one
                or (many and count > bounds.count / len(parts))
                or (large and size > bounds.bytes / len(parts))
            )

        giving = [index for index, (one, _) in enumerate(places) if gives(one)]
        beyond = any(count > bounds.count_of_one or size > bounds.bytes_of_one for count, size in parts.values())
        if not (too_many or too_large or beyond):
            return places
        places = [place for index, place in enumerate(places) if index != giving[0]]


class Backends(RuleBasedStateMachine):
    """Both stores and a list of their expected content, oldest first."""

    used = Bundle("used")

    @initialize(share=st.sampled_from([1.0, 0.75, 0.5]))
    def begin(self, share: float) -> None:
        self.now = 1000.0
        self.bounds = replace(BOUNDS, share=share)
        self.folder = TemporaryDirectory()
        self.memory = SqliteStore(None, self.bounds, lambda: self.now)
        self.file = self.opened()
        self.wanted: list[tuple[StoredResponse, float]] = []

    def opened(self) -> SqliteStore:
        return SqliteStore(Path(self.folder.name) / "responses", self.bounds, lambda: self.now)

    @rule(target=used, response=IDS, owner=OWNERS, size=st.integers(0, 80), events=st.binary(max_size=9))
    def put(self, response: str, owner: str, size: int, events: bytes) -> str:
        one = StoredResponse(response, owner, None, b"x" * size, b"[]", events, running=size % 2 == 0)
        self.wanted = [(other, at) for other, at in self.wanted if other.id != response]
        self.expire()
        before = self.parts()
        left = crowded([*self.wanted, (one, self.now)], self.bounds)
        fits = (one, self.now) in left
        assert [backend.put(one) for backend in (self.memory, self.file)] == [fits, fits]
        if fits:
            self.wanted = left
        owners = len(before.keys() | {owner})
        for other, (count, size) in before.items():
            even = count * owners <= BOUNDS.count and size * owners <= BOUNDS.bytes
            assert other == owner or not even or self.parts()[other] == (count, size), "an even share was touched"
        return response

    @rule(response=IDS | used, owner=OWNERS)
    def get(self, response: str, owner: str) -> None:
        self.expire()
        wanted = next((one for one, _ in self.wanted if (one.id, one.owner) == (response, owner)), None)
        assert self.memory.get(response, owner) == wanted
        assert self.file.get(response, owner) == wanted

    @rule(responses=st.lists(IDS, max_size=4))
    def use(self, responses: list[str]) -> None:
        self.memory.use(responses)
        self.file.use(responses)
        self.expire()
        for response in responses:
            moved = [one for one, _ in self.wanted if one.id == response]
            self.wanted = [(one, at) for one, at in self.wanted if one.id != response] + [(m, self.now) for m in moved]

    @rule(response=consumes(used), owner=OWNERS)
    def delete(self, response: str, owner: str) -> None:
        self.expire()
        there = any((one.id, one.owner) == (response, owner) for one, _ in self.wanted)
        assert [backend.delete(response, owner) for backend in (self.memory, self.file)] == [there, there]
        if there:
            self.wanted = [(one, at) for one, at in self.wanted if one.id != response]

    @rule(seconds=st.integers(0, 70))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def open_again(self) -> None:
        self.file.close()
        self.file = self.opened()

    def expire(self) -> None:
        self.wanted = [(one, at) for one, at in self.wanted if at >= self.now - BOUNDS.seconds]

    def parts(self) -> dict[str, tuple[int, int]]:
        return parts_of(self.wanted)

    @invariant()
    def are_whole(self) -> None:
        self.memory.check_integrity()
        self.file.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "file"):
            return
        self.file.close()
        self.memory.close()
        self.folder.cleanup()


TestBackends = Backends.TestCase
TestBackends.settings = settings(max_examples=25)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "responses"


@pytest.fixture
def backend(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path, BOUNDS)) as opened:
        yield opened


def test_only_the_servers_user_may_read_the_file(backend: SqliteStore, path: Path) -> None:
    backend.put(kept())
    files = list(path.parent.iterdir())
    assert len(files) > 1  # the log too
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


@pytest.mark.usefixtures("backend")
def test_one_server_has_a_file(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from plimsoll_runtime.options import ResponseBounds;"
        "from plimsoll_runtime.api.responses.sqlite_store import SqliteStore;"
        "SqliteStore(Path(sys.argv[1]), ResponseBounds())"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "database is locked" in done.stderr
    assert "--response-store" in done.stderr


def test_what_a_crash_leaves_is_read(path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from plimsoll_runtime.options import ResponseBounds;"
        "from plimsoll_runtime.api.responses.shares import StoredResponse;"
        "from plimsoll_runtime.api.responses.sqlite_store import SqliteStore;"
        "backend = SqliteStore(Path(sys.argv[1]), ResponseBounds());"
        "backend.put(StoredResponse('resp_1', 'a', None, b'{}', b'[]')); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False)
    assert done.returncode == -9
    with closing(SqliteStore(path, BOUNDS)) as backend:
        backend.check_integrity()
        assert backend.get("resp_1", "a") == kept()


def test_smaller_bounds_hold_from_the_start(backend: SqliteStore, path: Path) -> None:
    for number in range(4):
        backend.put(kept(f"resp_{number}"))
    backend.close()
    with closing(SqliteStore(path, ResponseBounds(count=1))) as smaller:
        smaller.check_integrity()
        assert smaller.get("resp_3", "a") is not None
        assert smaller.get("resp_2", "a") is None


@pytest.mark.parametrize("damage", ["text", "tables", "version", "folder"])
def test_a_file_that_is_no_store_is_refused(path: Path, damage: str) -> None:
    if damage == "text":
        path.write_text("no database" * 1000)
    elif damage == "folder":
        path.mkdir()
    else:
        with closing(sqlite3.connect(path)) as other:
            other.executescript("CREATE TABLE mine (a); PRAGMA user_version = 7;")
        if damage == "version":
            path.unlink()
            SqliteStore(path, BOUNDS).close()
            with closing(sqlite3.connect(path)) as other:
                other.execute("PRAGMA user_version = 99")
    with pytest.raises(UsageError, match=r"--response-store .* choose another file"):
        SqliteStore(path, BOUNDS)


def test_a_change_that_fails_changes_nothing(backend: SqliteStore) -> None:
    backend.put(kept(text=b"old"))
    backend._file.execute("CREATE TRIGGER full BEFORE INSERT ON responses BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with pytest.raises(sqlite3.Error, match="disk full"):
        backend.put(kept(text=b"new"))
    backend.check_integrity()
    assert backend.get("resp_1", "a") == kept(text=b"old")


async def test_what_cannot_be_kept_is_said_and_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = ResponseStore(BOUNDS, path)
    assert await store.put(kept())
    backend = store._backend
    assert isinstance(backend, SqliteStore)
    await store._do(lambda: backend._file.execute("PRAGMA query_only = 1").close())
    with caplog.at_level(logging.WARNING):
        assert not await store.put(kept("resp_2"))
    assert "resp_2 cannot be stored" in caplog.text
    await store.close()


@pytest.fixture(params=["memory", "file"])
async def store(request: pytest.FixtureRequest, path: Path) -> ResponseStore:
    return ResponseStore(ResponseBounds(count=4), path if request.param == "file" else None)


async def test_no_tenant_pushes_out_another(store: ResponseStore) -> None:
    """An owner above an even share loses responses; a share that is not needed is free for others."""
    await store.put(kept("resp_1", "quiet"))
    await store.put(kept("resp_2", "quiet"))
    for number in range(3, 30):
        assert await store.put(kept(f"resp_{number}", "busy"))
    assert [await store.get(f"resp_{number}", "quiet") is not None for number in (1, 2)] == [True, True]
    assert [n for n in range(3, 30) if await store.get(f"resp_{n}", "busy") is not None] == [28, 29]
    assert await store.delete("resp_1", "quiet")
    await store.put(kept("resp_30", "busy"))
    assert [n for n in range(3, 31) if await store.get(f"resp_{n}", "busy") is not None] == [28, 29, 30]
    await store.put(kept("resp_31", "new"))
    assert await store.get("resp_2", "quiet") is not None
    assert await store.get("resp_28", "busy") is None
    await store.close()


@pytest.mark.parametrize("in_file", [False, True])
async def test_what_has_no_room_beside_others_costs_nobody_anything(path: Path, in_file: bool) -> None:
    """Neither other tenants nor its own lose responses."""
    store = ResponseStore(ResponseBounds(bytes=8 * OVERHEAD), path if in_file else None)
    for number in range(3):
        await store.put(kept(f"resp_{number}", "quiet"))
    await store.put(kept("resp_3", "busy"))
    assert not await store.put(kept("resp_4", "busy", b"x" * 5 * OVERHEAD))
    owners = ["quiet", "quiet", "quiet", "busy"]
    found = [await store.get(f"resp_{number}", owner) for number, owner in enumerate(owners)]
    assert all(each is not None for each in found)
    assert await store.get("resp_4", "busy") is None
    await store.close()


@pytest.mark.parametrize("in_file", [False, True])
async def test_a_tenant_has_a_bound_of_its_own(path: Path, in_file: bool) -> None:
    store = ResponseStore(ResponseBounds(count=8, share=0.25), path if in_file else None)
    for number in range(4):
        await store.put(kept(f"resp_{number}", "a"))
    assert [await store.get(f"resp_{number}", "a") is not None for number in range(4)] == [False, False, True, True]
    await store.close()


async def test_a_conversation_is_used_as_a_whole(store: ResponseStore) -> None:
    """It lives as long as a conversation continues from it, whatever else is stored."""
    await store.put(kept("resp_1"))
    await store.put(kept("resp_2", previous="resp_1"))
    await store.put(kept("resp_3"))
    await store.put(kept("resp_4"))
    assert [turn.id for turn in await store.turns("resp_2", "a")] == ["resp_1", "resp_2"]
    await asyncio.gather(*(store.put(kept(f"resp_{number}")) for number in (5, 6)))
    assert [turn.id for turn in await store.turns("resp_2", "a")] == ["resp_1", "resp_2"]
    assert await store.get("resp_3", "a") is None
    await store.close()


async def test_a_conversation_with_a_gap_cannot_go_on(store: ResponseStore) -> None:
    await store.put(kept("resp_2", previous="resp_1"))
    await store.put(kept("resp_3", previous="resp_2"))
    with pytest.raises(ApiError, match="'resp_1' not found") as refused:
        await store.turns("resp_3", "a")
    assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
    with pytest.raises(ApiError, match="'resp_3' not found"):
        await store.turns("resp_3", "b")
    await store.close()


async def test_what_is_referred_to_has_a_bound(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_TURN_BYTES", 3 * OVERHEAD)
    for number in (1, 2, 3):
        await store.put(kept(f"resp_{number}"))
    assert list(await store.several(["resp_1", "resp_9", "resp_2"], "a")) == ["resp_1", "resp_2"]
    assert await store.several(["resp_1", "resp_2", "resp_3"], "b") == {}
    with pytest.raises(ApiError, match="send the items"):
        await store.several(["resp_1", "resp_2", "resp_3"], "a")
    await store.close()


async def test_a_conversation_has_an_end(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits in turns and in bytes; a circle looks like a long conversation."""
    for turns, size in ((3, 10**6), (10**6, 3 * OVERHEAD)):
        monkeypatch.setattr(store_module, "MAX_TURNS", turns)
        monkeypatch.setattr(store_module, "MAX_TURN_BYTES", size)
        await store.put(kept("resp_1", previous="resp_2"))
        await store.put(kept("resp_2", previous="resp_1"))
        with pytest.raises(ApiError, match="start a new"):
            await store.turns("resp_1", "a")
    await store.close()
