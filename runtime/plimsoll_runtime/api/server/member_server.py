"""The process of a member of a parallel group other than the leader: an agent in a thread, probes and metrics."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from plimsoll_runtime.api.http.concurrency import first
from plimsoll_runtime.api.http.errors import RETRY_AFTER, json_response
from plimsoll_runtime.api.server.app import run_process
from plimsoll_runtime.api.server.config import ServerConfig
from plimsoll_runtime.api.server.listener import HttpServer, listen
from plimsoll_runtime.api.server.metrics_server import metrics_listener, metrics_response, metrics_server
from plimsoll_runtime.api.telemetry.metrics_key import LABELS, metrics_key
from plimsoll_runtime.driver.build.model_files import find_files
from plimsoll_runtime.driver.process.group_facts import identity_of
from plimsoll_runtime.driver.process.member_agent import MemberAgent
from plimsoll_runtime.utils.log_prefix import prefix_log
from plimsoll_runtime.utils.progress import DOWNLOAD, Transfer
from plimsoll_runtime.utils.threads import in_daemon_thread
from plimsoll_runtime.version import VERSION
from plimsoll_telemetry.exposition import PATH
from plimsoll_telemetry.process_metrics import process_collectors

logger = logging.getLogger(__name__)

END_SECONDS = 5.0
"""Time for the agent to end its ranks."""
LEAVE_SECONDS = 5.0
"""Time beyond the drain time for the leader to end: its drain may begin later than this member's signal."""


def serve_member(config: ServerConfig) -> int:
    """Run a member until a signal ends it, and return 0. Raises PlimsollError on a fatal error.

    After the first signal, the leader decides when the member ends, so that a leader that drains keeps its ranks; after
    the second one it ends at once.
    """

    async def main() -> int:
        prefix_log(f"member {config.engine.group.index}: ")
        with listen(config.host, config.port) as listener, metrics_listener(config) as metrics:
            return await MemberServer(config, listener, metrics).run()

    return run_process(config, "member", main)


class MemberServer(Collector):
    """Runs one member from listening to its exit code. It is also the collector of its metrics."""

    def __init__(
        self, config: ServerConfig, listener: socket.socket, metrics_listener: socket.socket | None = None
    ) -> None:
        self._config = config
        self._key = metrics_key(config.deployment, config.names)
        self._listener = listener
        self._metrics_listener = metrics_listener
        self._agent: MemberAgent | None = None
        self._stage = "start"
        self._leaving, self._stopping = asyncio.Event(), asyncio.Event()
        self._registry = CollectorRegistry()
        for collector in (self, *process_collectors("member", VERSION)):
            self._registry.register(collector)
        self._http = HttpServer(self._app(), config.listener_options)

    async def run(self) -> int:
        """Serve and return the exit code. Raises PlimsollError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end)
        servers = [(self._http, self._listener)]
        if self._metrics_listener is not None:
            servers.append((metrics_server(self._registry), self._metrics_listener))
        serving = asyncio.gather(*(server.serve(sockets=[listener]) for server, listener in servers))
        host, port = self._listener.getsockname()[:2]
        logger.info("listening on http://%s:%d for probes", host, port)
        try:
            await self._live()
        finally:
            for server, _ in servers:
                server.should_exit = True
            await serving
        return 0

    def collect(self) -> Iterator[Metric]:
        """Yield this member's gauge and counter."""
        agent, labels = self._agent, (*self._key, str(self._config.engine.group.index))
        ready = GaugeMetricFamily(
            "plimsoll_member_ready",
            "1 while the ranks of this member of a parallel group serve.",
            labels=(*LABELS, "member"),
        )
        ready.add_metric(labels, float(not self._waits_for))
        yield ready
        generations = CounterMetricFamily(
            "plimsoll_member_generations",
            "Generations of ranks that this member of a parallel group has started.",
            labels=(*LABELS, "member"),
        )
        generations.add_metric(labels, float(0 if agent is None else agent.generations))
        yield generations

    def _end(self) -> None:
        if self._leaving.is_set():
            self._stopping.set()
        self._leaving.set()

    @property
    def _waits_for(self) -> str:
        """What the member waits for; "" while its ranks serve."""
        return self._stage if self._agent is None else self._agent.stage

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()

        def downloads(transfer: Transfer) -> None:
            loop.call_soon_threadsafe(setattr, self, "_stage", f"{DOWNLOAD} {transfer.fraction:.0%}")

        engine = self._config.engine
        finding = asyncio.ensure_future(
            in_daemon_thread(lambda: identity_of(engine, find_files(engine, on_transfer=downloads)))
        )
        await first(finding, self._leaving.wait())
        if not finding.done():
            finding.cancel()
            return
        self._agent = agent = MemberAgent(engine, finding.result())
        running = asyncio.ensure_future(in_daemon_thread(agent.run))
        await first(running, self._leaving.wait())
        if not running.done() and agent.joined:
            await self._leave(agent, running)
        # A member that has not joined has no ranks to end, and what its agent has started ends with this process.
        if running.done():
            running.result()

    async def _leave(self, agent: MemberAgent, running: asyncio.Future[None]) -> None:
        """Wait until the leader releases this member, its time is over, or a second signal arrives; end its ranks."""
        seconds = self._config.drain_seconds + LEAVE_SECONDS
        logger.info("leaving the group; the leader has %g s to drain", seconds)
        agent.leave()
        await first(running, self._stopping.wait(), asyncio.sleep(seconds))
        agent.stop()
        # A name that does not resolve can delay the agent; its ranks end with this process anyway.
        await first(running, asyncio.sleep(END_SECONDS))

    def _app(self) -> Starlette:
        index = self._config.engine.group.index

        async def health(_request: Request) -> Response:
            waits_for = self._waits_for
            report = {"status": "loading" if waits_for else "ready", "member": index}
            if not waits_for:
                return json_response(report)
            headers = {"Retry-After": str(RETRY_AFTER)}
            return json_response({**report, "stage": waits_for}, HTTPStatus.SERVICE_UNAVAILABLE, headers)

        async def live(_request: Request) -> Response:
            return json_response({"status": "live"})

        async def metrics(request: Request) -> Response:
            return metrics_response(self._registry, request)

        routes = [Route("/health", health), Route("/live", live)]
        if self._metrics_listener is None:
            routes.append(Route(PATH, metrics))
        return Starlette(routes=routes)
