"""The process of a host: config, two APIs on two ports, the models behind them, and an orderly end."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
from pathlib import Path

from plimsoll_runtime.api.host.access import Guard, Tokens, file_tokens, hashed_tokens
from plimsoll_runtime.api.host.app import build_host_app
from plimsoll_runtime.api.host.config import TOKENS_VARIABLE, HostConfig
from plimsoll_runtime.api.host.models import HostModels
from plimsoll_runtime.api.host.tokenizers import Tokenizers
from plimsoll_runtime.api.http.concurrency import first
from plimsoll_runtime.api.server.app import HttpFront, run_process
from plimsoll_runtime.api.server.listener import HttpServer, listen
from plimsoll_runtime.api.server.metrics_server import metrics_listener
from plimsoll_runtime.api.telemetry.host_metrics import HostCollector
from plimsoll_runtime.api.telemetry.host_traces import HostTraces
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.residency.engines.processes import Processes
from plimsoll_runtime.residency.host import Host
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.states import Level

logger = logging.getLogger(__name__)


class HostServer:
    """Runs one host from listening to its exit code. `listeners` are the sockets of the OpenAI API and of the host
    API, `metrics` is that of its metrics, if they have one."""

    def __init__(
        self,
        config: HostConfig,
        listeners: tuple[socket.socket, socket.socket],
        host: Host,
        tokenizers: Tokenizers | None = None,
        metrics: socket.socket | None = None,
    ) -> None:
        """Raises UsageError if the host API would be open to other machines."""
        self._config = config
        self._listeners = listeners
        self._metrics = metrics
        self._host = host
        self._models = HostModels(host, tokenizers, config.keep_alive)
        guard = make_guard(config, listeners[1])
        self._front = HttpFront(config, "host", collectors=(HostCollector(host),))
        self.state, self.stop, self._open = self._front.state, self._front.stop, self._front.http
        self._inner = HttpServer(build_host_app(host, self._models, guard))

    async def run(self) -> int:
        """Serve and return the exit code. Raises PlimsollError if the device or the models to place are invalid, and
        DeviceLostError if the device is lost."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        open_listener, inner_listener = self._listeners
        tasks = [asyncio.create_task(self._front.serve(open_listener, self._metrics))]
        logger.info("listening on http://%s:%d", *open_listener.getsockname()[:2])
        try:
            await self._host.start()
            tasks.append(asyncio.create_task(self._inner.serve(sockets=[inner_listener])))
            logger.info("host API on http://%s:%d", *inner_listener.getsockname()[:2])
            following = asyncio.create_task(self._models.follow())
            following.add_done_callback(_log_failure)
            try:
                return await self._live()
            finally:
                following.cancel()
        finally:
            await self.state.end()
            await self._host.close()
            self._front.end()
            self._inner.should_exit = True
            await asyncio.gather(*tasks)
            for listener in self._listeners:
                listener.close()

    async def _live(self) -> int:
        for name, spec in self._config.models:
            self._host.place(name, spec, Level.ON_DISK, f"start/{name}")
        self._front.ready(self._models)
        logger.info("ready: %d models to place", len(self._config.models))
        await first(self._front.stopping.wait(), self._host.lost())
        if self._host.loss is None:
            code = await self._front.drain()
            if self._host.loss is None:
                self._inner.force_exit = self._open.force_exit
                return code
        else:
            self.state.fail(self._host.loss)
            await self._front.until_idle(self._config.drain_seconds)
        raise self._host.loss


def make_guard(config: HostConfig, listener: socket.socket) -> Guard:
    """Return the guard of the host API. Raises UsageError if the API would be open to other machines."""
    guard = Guard(_tokens(config.host_token_file, config.host_token_hashes))
    address = listener.getsockname()[0]
    if guard.is_open and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        raise UsageError(
            f"the host API would be open to every client that reaches {address}; set --host-token-file, or "
            "--host-address 127.0.0.1"
        )
    return guard


def _tokens(file: Path | None, hashes: str) -> Tokens | None:
    """Return the configured tokens, None if there are none. Raises UsageError if both sources are set."""
    if file is not None and hashes:
        raise UsageError(f"tokens are set both by {file} and by {TOKENS_VARIABLE}; leave one out")
    if file is not None:
        return file_tokens(file)
    return hashed_tokens(hashes, TOKENS_VARIABLE) if hashes else None


def _log_failure(task: asyncio.Task[None]) -> None:
    """Log the failure and continue: without reading ahead, requests read the tokenizers."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("reading tokenizers ahead has failed; requests will read them", exc_info=error)


def serve_host(config: HostConfig, settings: Settings) -> int:
    """Serve until a signal ends it; return 0 after a drain, 130 after an immediate end. Raises PlimsollError on a
    fatal error."""

    async def main() -> int:
        inner = (config.inner_address, config.host_port, "--host-address or --host-port")
        with listen(config.host, config.port) as one, listen(*inner) as other, metrics_listener(config) as metrics:
            processes = Processes(device=settings.device)
            server = HostServer(config, (one, other), Host(processes, settings), metrics=metrics)
            if (steps := server.state.steps) is not None and (starts := server.state.starts) is not None:
                processes.observe(HostTraces(config.tracing.steps, steps, starts))
            return await server.run()

    return run_process(config, "host", main)
