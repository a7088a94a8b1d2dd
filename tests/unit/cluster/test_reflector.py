from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import pytest

from plimsoll_cluster.keys import Object
from plimsoll_cluster.reflector import LONGEST_DELAY, GoneError, Page, Reflector, UnreachableError
from plimsoll_cluster.resource import Resource
from plimsoll_cluster.store import Store

THINGS: Resource[Any] = Resource("Thing", "/apis/x/v1", "things", lambda item: item.get("x"))


def item(name: str, version: int, **more: object) -> dict[str, Any]:
    meta = {"namespace": "ns", "name": name, "uid": f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": meta, **more}


def event(kind: str, thing: Object) -> Mapping[str, Any]:
    return {"type": kind, "object": thing}


class Script:
    """A scripted source that cancels the reflector at its end. A list is given page by page."""

    title = "things"

    def __init__(self, *steps: object) -> None:
        self._steps = list(steps)
        self.asked: list[str] = []

    def _next(self, what: str) -> Any:
        self.asked.append(what)
        if not self._steps:
            raise asyncio.CancelledError
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    async def list(self) -> AsyncIterator[Page]:
        *pages, version = self._next("list")
        for page in pages:
            if isinstance(page, Exception):
                raise page
            yield Page(page, version)

    async def watch(self, version: int) -> AsyncGenerator[Mapping[str, Any], None]:
        for one in self._next(f"watch {version}"):
            if isinstance(one, Exception):
                raise one
            if callable(one):
                one()
                await asyncio.Event().wait()
            yield one


async def follow(script: Script) -> tuple[Store[Any], list[set[str]], list[float]]:
    """Run to the script's end. Returns the store, the names after each change, and the waits."""
    seen: list[set[str]] = []
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    store = Store(THINGS, None)
    store.listen(lambda _: seen.append({entry.key.name for entry in store}))
    with pytest.raises(asyncio.CancelledError):
        await Reflector(script, store.parts[None], sleep).run()
    store.check_integrity()
    return store, seen, waits


async def test_list_then_watch_from_where_it_ended() -> None:
    bookmark = {"metadata": {"resourceVersion": "9"}}
    script = Script(
        ([item("a", 1)], 5),
        [event("ADDED", item("b", 6)), event("DELETED", item("a", 7)), event("BOOKMARK", bookmark)],
        [event("MODIFIED", item("b", 10, x=1))],
    )
    store, seen, waits = await follow(script)
    assert script.asked == ["list", "watch 5", "watch 9", "watch 10"]
    assert seen == [{"a"}, {"a", "b"}, {"b"}, {"b"}]
    assert [entry.value for entry in store] == [1]
    assert waits == []


async def test_an_expired_watch_lists_again() -> None:
    script = Script(([item("a", 1)], 5), [event("ADDED", item("b", 6)), GoneError()], ([item("c", 8)], 8))
    _, seen, _ = await follow(script)
    assert script.asked == ["list", "watch 5", "list", "watch 8"]
    assert seen[-1] == {"c"}


async def test_while_the_server_is_away_the_last_state_stays() -> None:
    script = Script(([item("a", 1)], 5), *[UnreachableError("refused")] * 10, [event("ADDED", item("b", 6))])
    store, seen, waits = await follow(script)
    assert seen == [{"a"}, {"a", "b"}]
    assert script.asked[1:] == ["watch 5"] * 11 + ["watch 6"]
    assert len(waits) == 10
    assert waits[0] <= 0.5
    assert all(wait <= LONGEST_DELAY for wait in waits)
    assert waits[-1] >= LONGEST_DELAY / 2
    assert store.synced


async def test_trouble_is_counted_until_something_is_told() -> None:
    lost, found = UnreachableError("403: pods is forbidden"), [event("ADDED", item("b", 6))]
    store, _, _ = await follow(Script(([item("a", 1)], 5), lost, lost))
    assert (store.parts[None].failures, store.parts[None].trouble) == (2, "things: 403: pods is forbidden")
    for script in (Script(lost, ([], 5)), Script(([], 5), lost, found)):
        store, _, _ = await follow(script)
        assert (store.parts[None].failures, store.parts[None].trouble) == (0, "")


async def test_the_delay_begins_anew_after_an_event() -> None:
    breaks = [event("ADDED", item("a", 2)), UnreachableError("x")]
    script = Script(([], 1), *[UnreachableError("x")] * 6, breaks)
    _, _, waits = await follow(script)
    assert waits[5] > 1
    assert waits[6] <= 0.5


async def test_a_server_that_ends_each_watch_at_once_is_not_hammered() -> None:
    _, _, waits = await follow(Script(([], 1), [], [], []))
    assert len(waits) == 3


async def test_nothing_is_known_before_the_first_list() -> None:
    store, seen, _ = await follow(Script(UnreachableError("x"), UnreachableError("y")))
    assert not store.synced
    assert seen == []


async def test_pages_become_one_list() -> None:
    store, seen, _ = await follow(Script(([item("a", 1)], [item("b", 2)], 5)))
    assert seen == [{"a", "b"}], "a partial list must not be visible"
    assert store.parts[None].version == 5


async def test_a_list_that_expires_between_two_pages_begins_anew() -> None:
    store, seen, _ = await follow(Script(([item("a", 1)], GoneError(), 5), ([item("c", 8)], 8)))
    assert seen == [{"c"}]
    assert store.parts[None].lists_done == 2


async def test_a_doubted_watch_gives_way_to_a_list() -> None:
    doubts: list[int] = []
    store = Store(THINGS, None)
    script = Script(([item("a", 1)], 5), [lambda: doubts.append(store.parts[None].doubt())], ([item("a", 7)], 7))
    with pytest.raises(asyncio.CancelledError):
        await Reflector(script, store.parts[None]).run()
    assert script.asked == ["list", "watch 5", "list", "watch 7"]
    assert doubts == [store.parts[None].lists_done]


async def test_a_list_under_way_does_not_settle_a_doubt() -> None:
    store = Store(THINGS, None)
    part = store.parts[None]

    class Doubted(Script):
        async def list(self) -> AsyncIterator[Page]:
            async for page in super().list():
                if part.lists_begun == 1:
                    part.doubt()
                yield page

    script = Doubted(([item("a", 1)], 5), ([item("b", 7)], 7))
    with pytest.raises(asyncio.CancelledError):
        await Reflector(script, part).run()
    assert script.asked == ["list", "list", "watch 7"]
