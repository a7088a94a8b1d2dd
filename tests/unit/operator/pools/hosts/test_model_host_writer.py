"""ModelHosts are written evenly, with the latest state of each, and not for numbers that always change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from operator_support.objects import EPOCH
from operator_support.server import Server, ServerApi
from operator_support.stub_host import StubHost

from plimsoll_cluster.resource import Resource
from plimsoll_operator.kube.api import ApiError
from plimsoll_operator.kube.plan_executor import NotLeaderError
from plimsoll_operator.kube.stores import Stores
from plimsoll_operator.pools.hosts.host_registry import HostPod, HostRegistry
from plimsoll_operator.pools.hosts.model_host import load_bar
from plimsoll_operator.pools.hosts.model_host_writer import AT_A_TIME, HostWriter
from plimsoll_operator.pools.hosts.rate_limiter import RateLimiter
from plimsoll_operator.spec.identity import HOST_KIND, Object, ObjectKey

POOL = ObjectKey("team", "shared")


class Time:
    """A clock, and a sleep that advances it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Advance the clock; other tasks may sleep at the same time."""
        due = self.now + seconds
        await asyncio.sleep(0)
        self.now = max(self.now, due)


class TimedApi(ServerApi):
    """Records the time of each write."""

    def __init__(self, server: Server, time: Time) -> None:
        super().__init__(server)
        self.time = time
        self.times: list[float] = []

    async def create(self, resource: Resource[Any], body: Object, *, strict: bool = False) -> Object:
        self.times.append(self.time.now)
        return await super().create(resource, body, strict=strict)

    async def apply_status(self, item: Object, status: Mapping[str, Any]) -> Object:
        self.times.append(self.time.now)
        return await super().apply_status(item, status)


class Writing:
    """A hundred hosts and their writer."""

    def __init__(self, count: int = 100, *, leads: bool = True) -> None:
        self.time, self.server = Time(), Server()
        self.api = TimedApi(self.server, self.time)
        self.registry = HostRegistry()
        self.registry.keep(POOL, [HostPod(POOL, f"h{i}", f"u{i}", "n1", "198.18.0.9", 0) for i in range(count)])
        self.stubs = {f"u{i}": StubHost(sequence=1) for i in range(count)}
        self.writer = HostWriter(
            self.api,
            Stores(None),
            self.registry,
            RateLimiter(20.0, clock=self.time, sleep=self.time.sleep),
            may_act=lambda: leads,
            draining=lambda uid: False,
            admits=lambda pool, model: True,
            clock=lambda: EPOCH,
        )
        self.report()

    def report(self) -> None:
        for uid, stub in self.stubs.items():
            self.registry.take(uid, stub.report(), stub.now)

    async def write(self) -> None:
        """Run the writer until its queue is empty."""
        task = asyncio.create_task(self.writer.run())
        while self.writer._pending or not task.done():
            before = len(self.api.times), dict(self.writer._pending)
            for _ in range(8):
                await asyncio.sleep(0)
            if (len(self.api.times), dict(self.writer._pending)) == before and not before[1]:
                break
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def test_a_hundred_hosts_take_twenty_writes_a_second_at_the_most() -> None:
    writing = Writing()
    for uid in writing.stubs:
        writing.writer.note(uid)
    await writing.write()
    assert len(writing.server.objects[HOST_KIND]) == 100
    assert all("load" in item["status"] for item in writing.server.objects[HOST_KIND].values())
    times = writing.api.times
    assert len(times) == 200, "each is made, and given its status"
    for begin in times:
        assert sum(begin <= at < begin + 0.999 for at in times) <= 20


async def test_of_many_changes_the_newest_is_written_once() -> None:
    writing = Writing(1)
    writing.writer.note("u0")
    await writing.write()
    written = len(writing.api.times)
    for _ in range(50):
        writing.stubs["u0"].decide(ObjectKey("team", "m"), "Woken", "")
        writing.report()
        writing.writer.note("u0")
    await writing.write()
    assert len(writing.api.times) == written + 1
    assert writing.server.objects[HOST_KIND]["h0"]["status"]["sequence"] == 51


async def test_numbers_alone_are_told_by_the_heartbeat_only() -> None:
    writing = Writing(1)
    writing.writer.note("u0")
    await writing.write()
    written = len(writing.api.times)
    writing.stubs["u0"].lie = lambda report: report | {"time": report["time"] + 5}
    writing.report()
    writing.writer.note("u0")
    await writing.write()
    assert len(writing.api.times) == written
    writing.writer.note("u0", beat=True)
    await writing.write()
    assert len(writing.api.times) == written + 1


async def test_who_does_not_lead_writes_nothing() -> None:
    writing = Writing(1, leads=False)
    writing.writer.note("u0")
    with pytest.raises(ExceptionGroup) as raised:
        await writing.write()
    assert raised.group_contains(NotLeaderError)
    assert writing.api.asked == []


@pytest.mark.parametrize("hosts", [2, 10])
async def test_a_slow_server_is_asked_for_some_at_a_time_and_never_for_one_host_twice(
    monkeypatch: pytest.MonkeyPatch, hosts: int
) -> None:
    writing, under_way, most, go_on = Writing(hosts), list[str](), list[int](), asyncio.Event()
    create = writing.api.create

    async def slowly(resource: Resource[Any], host: Object) -> Object:
        name = host["metadata"]["name"]
        assert name not in under_way
        under_way.append(name)
        most.append(len(under_way))
        writing.writer.note(f"u{name[1:]}")
        await go_on.wait()
        under_way.remove(name)
        return await create(resource, host)

    monkeypatch.setattr(writing.api, "create", slowly)
    for uid in writing.stubs:
        writing.writer.note(uid)
    task = asyncio.create_task(writing.writer.run())
    for _ in range(50):
        await asyncio.sleep(0)
    assert (max(most), len(most)) == (min(AT_A_TIME, hosts),) * 2
    go_on.set()
    for _ in range(2000):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert sorted(writing.server.objects[HOST_KIND]) == sorted(f"h{number}" for number in range(hosts))


async def test_what_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    writing = Writing(1)
    later: list[Any] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda seconds, call, *args: later.append((call, args)))

    async def refuse(resource: Resource[Any], host: Object) -> Object:
        raise ApiError(503, "not now")

    with monkeypatch.context() as patched:
        patched.setattr(writing.api, "create", refuse)
        await writing.writer.write("u0")
    assert "not now" in caplog.text
    ((call, args),) = later
    call(*args)
    await writing.write()
    assert "h0" in writing.server.objects[HOST_KIND]


@pytest.mark.parametrize(
    ("reserved", "line", "bar"),
    [
        (0, 10 << 30, "[..........] 0% of 10.0Gi"),
        (61 << 26, 100 << 26, "[######....] 61% of 6.2Gi"),
        (10 << 30, 10 << 30, "[##########] 100% of 10.0Gi"),
        (12 << 30, 10 << 30, "[##########] 120% of 10.0Gi"),
        (0, 0, "[..........] 0% of 0.0Gi"),
    ],
)
def test_the_load_line_as_a_bar(reserved: int, line: int, bar: str) -> None:
    assert load_bar(reserved, line) == bar
