"""A gateway that serves `GET /demand` as in docs/design/20261122-scaling.md, and sends wrong reports on request.

`StubGateway` is the gateway, `StubGatewayClient` calls it directly, `serve` puts it behind real HTTP.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from aiohttp import web

from plimsoll_operator.scaling.demand import Demand, decode_demand
from plimsoll_operator.scaling.poller import GatewayClient, GatewayError
from plimsoll_operator.spec.identity import ObjectKey

Json = dict[str, Any]
BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


@dataclass
class StubLatency:
    """Measured seconds: their number, their sum, and the counts within each bound."""

    count: int = 0
    seconds: float = 0.0
    within: dict[float, int] = field(default_factory=lambda: dict.fromkeys(BOUNDS, 0))

    def measure(self, seconds: float, times: int = 1) -> None:
        """Add a value, `times` times."""
        self.count += times
        self.seconds += seconds * times
        for bound in BOUNDS:
            self.within[bound] += times * (seconds <= bound)

    def body(self) -> Json:
        """Return it as JSON."""
        return {"count": self.count, "seconds": self.seconds, "buckets": [list(pair) for pair in self.within.items()]}


@dataclass
class StubDemand:
    """The demand of one model."""

    held: int = 0
    in_flight: int = 0
    asked: int = 0
    last_asked: float | None = None
    ended: int = 0
    replicas: int = 0
    running: int = 0
    waiting: int = 0
    slots: int = 8
    kv: float = 0.0
    first_byte: StubLatency = field(default_factory=StubLatency)
    gap: StubLatency = field(default_factory=StubLatency)


class Wait(Enum):
    """What ended the wait of a request."""

    NEWS = "news"
    TIME = "time"


@dataclass
class StubGateway:
    """`now` is its clock; `waits` has what ended the wait of each request over HTTP."""

    instance: str = "g1"
    sequence: int = 0
    now: Callable[[], float] = lambda: 1767225600.0
    models: dict[ObjectKey, StubDemand] = field(default_factory=dict)
    dead: bool = False
    lie: Callable[[Json], Json] = lambda answer: answer
    news: asyncio.Event = field(default_factory=asyncio.Event)
    waits: list[Wait] = field(default_factory=list)

    def of(self, key: ObjectKey) -> StubDemand:
        """Return a model's demand, which may be changed."""
        return self.models.setdefault(key, StubDemand())

    def hold(self, key: ObjectKey, requests: int = 1) -> None:
        """Add requests for a model without a replica."""
        model = self.of(key)
        begins = not model.held
        model.held += requests
        self.ask(key, requests)
        if begins:
            self._tell()

    def let_go(self, key: ObjectKey) -> None:
        """Release held requests to a replica."""
        model = self.of(key)
        if model.held:
            model.held = 0
            self._tell()

    def ask(self, key: ObjectKey, requests: int = 1) -> None:
        """Add requests in flight."""
        model = self.of(key)
        model.in_flight += requests
        model.asked += requests
        model.last_asked = self.now()

    def end(self, key: ObjectKey, requests: int = 1, first_byte: float = 0.1, gap: float = 0.02) -> None:
        """End requests with this time to first byte, and ten events each."""
        model = self.of(key)
        model.in_flight -= requests
        model.ended += requests
        model.first_byte.measure(first_byte, requests)
        model.gap.measure(gap, 10 * requests)

    def restart(self, instance: str) -> None:
        """Replace the process by an empty one."""
        self.instance, self.sequence, self.dead = instance, 0, False
        self.models.clear()

    def body(self) -> Json:
        """Return the report as JSON."""
        models = [_entry(key, model) for key, model in sorted(self.models.items())]
        return self.lie({"instance": self.instance, "sequence": self.sequence, "time": self.now(), "models": models})

    def answer(self) -> Demand:
        """Return the report. Raise GatewayError if the gateway is dead, BadDemandError for a report that is not
        valid.
        """
        if self.dead:
            raise GatewayError("it is not reachable")
        return decode_demand(json.dumps(self.body()).encode())

    def _tell(self) -> None:
        self.sequence += 1
        self.news.set()
        self.news = asyncio.Event()


def _entry(key: ObjectKey, model: StubDemand) -> Json:
    part = {
        "revision": "r",
        "replicas": model.replicas,
        "running": model.running,
        "waiting": model.waiting,
        "slots": model.slots * model.replicas,
        "kv": model.kv,
        "requests": model.ended,
        "errors": 0,
        "broken": 0,
        "firstByte": model.first_byte.body(),
        "eventGap": model.gap.body(),
    }
    return {
        "namespace": key.namespace,
        "name": key.name,
        "held": model.held,
        "inFlight": model.in_flight,
        "asked": model.asked,
        "lastAsked": model.last_asked,
        "revisions": [part] if model.replicas or model.ended else [],
    }


class StubGatewayClient(GatewayClient):
    """Calls a gateway without HTTP."""

    def __init__(self, gateway: StubGateway) -> None:
        self._gateway = gateway

    async def demand(self, after: int, wait: float = 0.0) -> Demand:
        return self._gateway.answer()


@asynccontextmanager
async def serve(gateway: StubGateway, address: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """Serve the gateway over HTTP on loopback; yield its port."""

    async def demand(request: web.Request) -> web.Response:
        after, wait = int(request.query["after"]), float(request.query["wait"])
        if gateway.sequence <= after and not gateway.dead:
            with suppress(TimeoutError):
                await asyncio.wait_for(gateway.news.wait(), wait)
            gateway.waits.append(Wait.NEWS if gateway.sequence > after else Wait.TIME)
        if gateway.dead:
            return web.json_response({"error": {"message": "it is dead"}}, status=503)
        return web.json_response(gateway.body())

    app = web.Application()
    app.add_routes([web.get("/demand", demand)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextmanager
def serving(gateway: StubGateway) -> Iterator[tuple[int, Callable[..., object]]]:
    """Serve the gateway in a thread; yield its port, and a function that calls one of its methods there."""
    loop, stopped = asyncio.new_event_loop(), asyncio.Event()
    port: Future[int] = Future()

    async def run() -> None:
        async with serve(gateway) as found:
            port.set_result(found)
            await stopped.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    try:
        yield port.result(60), lambda method, *given: loop.call_soon_threadsafe(lambda: method(*given))
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        loop.close()
