from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from plimsoll_gateway.objects import Object
from plimsoll_gateway.reflector import LONGEST_DELAY, GoneError, Reflector, UnreachableError


def item(name: str, version: int, **more: object) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name, "resourceVersion": str(version)}, **more}


def event(kind: str, thing: Object) -> Mapping[str, Any]:
    return {"type": kind, "object": thing}


class Script:
    """A source that answers as told, then stops the reflector by cancelling it."""

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

    async def list(self) -> tuple[list[Object], str]:
        found: tuple[list[Object], str] = self._next("list")
        return found

    async def watch(self, resource_version: str) -> AsyncIterator[Mapping[str, Any]]:
        for one in self._next(f"watch {resource_version}"):
            if isinstance(one, Exception):
                raise one
            yield one


async def follow(script: Script) -> tuple[Reflector, list[set[str]], list[float]]:
    """Run to the script's end; also the names after each change, and how long was waited."""
    seen: list[set[str]] = []
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    def changed() -> None:
        assert reflector.items is not None
        seen.append({key.name for key in reflector.items})

    reflector = Reflector(script, changed, sleep)
    with pytest.raises(asyncio.CancelledError):
        await reflector.run()
    return reflector, seen, waits


async def test_list_then_watch_from_where_it_ended() -> None:
    bookmark = {"metadata": {"resourceVersion": "9"}}
    script = Script(
        ([item("a", 1)], "5"),
        [event("ADDED", item("b", 6)), event("DELETED", item("a", 7)), event("BOOKMARK", bookmark)],
        [event("MODIFIED", item("b", 10, x=1))],
    )
    reflector, seen, waits = await follow(script)
    assert script.asked == ["list", "watch 5", "watch 9", "watch 10"]
    assert seen == [{"a"}, {"a", "b"}, {"b"}, {"b"}]
    assert reflector.items is not None
    assert [thing["x"] for thing in reflector.items.values()] == [1]
    assert waits == []


async def test_an_expired_watch_lists_again() -> None:
    script = Script(([item("a", 1)], "5"), [event("ADDED", item("b", 6)), GoneError()], ([item("c", 8)], "8"))
    _, seen, _ = await follow(script)
    assert script.asked == ["list", "watch 5", "list", "watch 8"]
    assert seen[-1] == {"c"}


async def test_while_the_server_is_away_the_last_state_stays() -> None:
    script = Script(([item("a", 1)], "5"), *[UnreachableError("refused")] * 10, [event("ADDED", item("b", 6))])
    reflector, seen, waits = await follow(script)
    assert seen == [{"a"}, {"a", "b"}]
    assert script.asked[1:] == ["watch 5"] * 11 + ["watch 6"]
    assert len(waits) == 10
    assert waits[0] <= 0.5
    assert all(wait <= LONGEST_DELAY for wait in waits)
    assert waits[-1] >= LONGEST_DELAY / 2
    assert reflector.items is not None


async def test_the_delay_begins_anew_after_an_event() -> None:
    breaks = [event("ADDED", item("a", 2)), UnreachableError("x")]
    script = Script(([], "1"), *[UnreachableError("x")] * 6, breaks)
    _, _, waits = await follow(script)
    assert waits[5] > 1
    assert waits[6] <= 0.5


async def test_a_server_that_ends_each_watch_at_once_is_not_hammered() -> None:
    _, _, waits = await follow(Script(([], "1"), [], [], []))
    assert len(waits) == 3


async def test_nothing_is_known_before_the_first_list() -> None:
    reflector, seen, _ = await follow(Script(UnreachableError("x"), UnreachableError("y")))
    assert reflector.items is None
    assert seen == []
