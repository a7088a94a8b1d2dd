"""Fake runtime pods of a pool: hosts behind real HTTP, whose reports change constantly.

Runs as a separate process, so that its CPU time does not count for the operator. Each host holds a report request until
its state changes, like a real one; the changes are models that wake or fall asleep.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

import msgspec
from aiohttp import web
from operator_support.stub_host import MIB, StubHost

from plimsoll_operator.pools.hosts.client import HostError
from plimsoll_operator.spec.identity import HOST_PORT, ObjectKey

VERBS = {"PUT": "place", "DELETE": "remove"}
LEVELS = {"Resident": "InHost", "InHost": "Resident", "OnDisk": "Resident"}


def address(number: int) -> str:
    """Return the address of the host with this number, from 0: one loopback address per host, because the port is the
    same.
    """
    return f"127.1.{number // 250}.{number % 250 + 1}"


class Host:
    """One fake host, and the report requests that wait for a change of its state."""

    def __init__(self, number: int) -> None:
        self.stub = StubHost(instance=f"host-{number}", sleepers=1024 * MIB, size=90 * MIB)
        self._news = asyncio.Condition()

    async def report(self, request: web.Request) -> web.Response:
        """Answer a report request once the host's sequence number exceeds `after`, or after `wait` seconds."""
        after, wait = int(request.query["after"]), float(request.query["wait"])
        try:
            async with asyncio.timeout(wait), self._news:
                await self._news.wait_for(lambda: self.stub.sequence > after)
        except TimeoutError:
            pass
        self.stub.now = time.time()
        for model in self.stub.models.values():
            model.active, model.last_used = random.randrange(20), self.stub.now
        return web.json_response(body=msgspec.json.encode(self.stub.body()))

    async def change(self, request: web.Request) -> web.Response:
        """Apply an operation that the operator requests for a model, and return the response."""
        key = ObjectKey(request.match_info["namespace"], request.match_info["name"])
        verb = VERBS.get(request.method) or request.match_info["verb"]
        self.stub.now = time.time()
        try:
            status, answer = self.stub.change(verb, key, msgspec.json.decode(await request.read()))
        except HostError as error:
            return web.json_response({"error": {"code": "refused", "message": str(error)}}, status=error.code or 500)
        await self.tell()
        return web.json_response(answer, status=status)

    async def live(self, seconds: float) -> None:
        """Forever, after random pauses of `seconds` on average, put a random awake model to sleep or wake a sleeping
        one.
        """
        while True:
            await asyncio.sleep(random.expovariate(1 / seconds))
            arrived = [key for key, model in self.stub.models.items() if model.state in LEVELS and not model.wish]
            key = random.choice(arrived) if arrived else None
            if key is not None and (self.stub.models[key].state == "Resident" or self.stub.fits(key)):
                self.stub.now = time.time()
                self.stub.become(key, LEVELS[self.stub.models[key].state], "its requests come and go")
                await self.tell()

    async def tell(self) -> None:
        """Wake the report requests that wait for a change."""
        async with self._news:
            self._news.notify_all()


async def serve(count: int, seconds: float) -> None:
    """Serve `count` hosts forever; print "ready" once every host answers."""
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            host, app = Host(number), web.Application()
            app.router.add_get("/host/v1/report", host.report)
            path = "/host/v1/models/{namespace}/{name}"
            app.router.add_put(path, host.change)
            app.router.add_delete(path, host.change)
            app.router.add_post(path + "/{verb}", host.change)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, address(number), HOST_PORT).start()
            group.create_task(host.live(seconds))
        print("ready", flush=True)


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="between two news of one host, on average")
    args = parser.parse_args()
    asyncio.run(serve(args.count, args.seconds))


if __name__ == "__main__":
    main()
