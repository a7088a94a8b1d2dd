"""The server process: listens immediately, loads, serves and drains, writes device findings to a file, and ends with
an exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from plimsoll_kernels.whole_file import write_whole
from plimsoll_runtime.api.http.concurrency import first
from plimsoll_runtime.api.model_directory import OneModel
from plimsoll_runtime.api.served_model import Engine, ServedModel
from plimsoll_runtime.api.server.app import HttpFront, run_process
from plimsoll_runtime.api.server.config import ServerConfig
from plimsoll_runtime.api.server.listener import listen
from plimsoll_runtime.api.server.metrics_server import metrics_listener
from plimsoll_runtime.api.server.queue_limit import QueueLimit
from plimsoll_runtime.api.server.state import Phase, ServerState
from plimsoll_runtime.driver.build.model_files import find_files
from plimsoll_runtime.driver.process.standby import StandbyProcess
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.limits import longest_at_once
from plimsoll_runtime.engine.protocol.messages import EngineInfo
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.text.generation_config import recommended
from plimsoll_runtime.text.tokenizer import Tokenizer, load_tokenizer
from plimsoll_runtime.utils.log_prefix import prefix_log
from plimsoll_runtime.utils.process_exit import INTERRUPTED
from plimsoll_runtime.utils.progress import DOWNLOAD, Progress, Transfer
from plimsoll_runtime.utils.threads import in_daemon_thread
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_telemetry import attributes as names

logger = logging.getLogger(__name__)

Load = Callable[[ServerConfig, ServerState], Coroutine[Any, Any, ServedModel]]
StartEngine = Callable[[EngineConfig, Progress], Awaitable[Engine]]

LAST_WORDS_SECONDS = 5.0
"""How long requests may take to report the engine's death before the process ends."""


def write_findings(path: Path | None, findings: Sequence[str]) -> None:
    """Write findings about the device to a file, one on each line; log a file that cannot be written.

    They go to a file because HTTP would show them to every client.
    """
    if path is None:
        return
    try:
        write_whole(path, "".join(f"{' '.join(text.split())}\n" for text in findings).encode())
    except OSError as problem:
        logger.warning("the findings about the device cannot be written to %s: %s", path, problem)


def serve(config: ServerConfig, standby: StandbyProcess | None = None) -> int:
    """Serve until a signal ends it; return 0 after a drain, 130 after an immediate end. `standby` becomes the engine,
    if there is one.

    Raises PlimsollError on a fatal error.
    """

    async def main() -> int:
        if config.engine.group.size > 1:
            prefix_log(f"member {config.engine.group.index}: ")
        with listen(config.host, config.port) as listener, metrics_listener(config) as metrics:
            return await Server(config, listener, partial(load_and_start, standby), metrics).run()

    return run_process(config, "runtime", main)


async def load_and_start(standby: StandbyProcess | None, config: ServerConfig, state: ServerState) -> ServedModel:
    """Load the model with an engine in a process of its own."""
    from plimsoll_runtime.driver.clients.async_client import AsyncEngine

    start = partial(AsyncEngine.start, standby=standby)
    if (steps := state.steps) is not None:
        about = {names.REQUEST_MODEL: config.names[0]}
        config = replace(config, engine=replace(config.engine, step_tracing=config.tracing.steps))
        start = partial(start, on_traced=lambda step, info: steps.report(step, info, about))
    return await load_model(config, state, start)


class Server:
    """Runs one server from listening to its exit code. `metrics` is the socket for metrics, if they have one."""

    def __init__(
        self, config: ServerConfig, listener: socket.socket, load: Load, metrics: socket.socket | None = None
    ) -> None:
        self._config = config
        self._listener = listener
        self._metrics = metrics
        self._load_model = load
        self._front = HttpFront(config, "runtime", config.names, config.deployment)
        self.state, self.stop = self._front.state, self._front.stop

    async def run(self) -> int:
        """Serve and return the exit code. Raises PlimsollError if the model cannot be loaded or the engine dies."""
        self._handle(signal.SIGINT)
        serving = asyncio.create_task(self._front.serve(self._listener, self._metrics))
        host, port = self._listener.getsockname()[:2]
        logger.info("listening on http://%s:%d, loading %s", host, port, self._config.engine.model)
        try:
            return await self._live()
        finally:
            self._front.end()
            await serving

    def _handle(self, number: signal.Signals) -> None:
        asyncio.get_running_loop().add_signal_handler(number, self.stop)

    async def _live(self) -> int:
        model = None
        try:
            model = await self._load()
            if model is None:
                return 0
            self._handle(signal.SIGTERM)  # without a model there is nothing to drain: see cli/entry.py
            return await self._serve(model)
        finally:
            await self.state.end()
            if model is not None:
                await model.engine.stop()

    async def _load(self) -> ServedModel | None:
        """Return the loaded model, or None if a signal came first."""
        loading = asyncio.create_task(self._load_model(self._config, self.state))
        await first(loading, self._front.stopping.wait())
        if not loading.done():
            self.state.phase = Phase.DRAINING
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            return None
        try:
            model = loading.result()
        except BaseException as error:
            self.state.fail(error)
            self._report_start(None, error)
            raise
        self._report_start(model.engine.info)
        write_findings(self._config.findings_file, model.engine.info.findings)
        self._front.ready(OneModel(model))
        _log_summary(model)
        return model

    def _report_start(self, info: EngineInfo | None, error: BaseException | None = None) -> None:
        if self.state.starts is not None:
            self.state.starts.ended(self.state.start, {names.REQUEST_MODEL: self._config.names[0]}, info, error)

    async def _serve(self, model: ServedModel) -> int:
        dead = asyncio.create_task(model.engine.wait_dead())
        try:
            await first(dead, self._front.stopping.wait())
            if not dead.done():
                model.engine.drain()
            code = 0 if dead.done() else await self._front.drain(dead)
            if dead.done() and code != INTERRUPTED:
                await self._tell_death(model.engine)
            return code
        finally:
            dead.cancel()

    async def _tell_death(self, engine: Engine) -> None:
        """Wait until requests in flight have reported the error. Raises the error that ended the engine."""
        error = engine.failure or EngineDeadError("the engine process died; see its log")
        self.state.fail(error)
        await self._front.until_idle(LAST_WORDS_SECONDS)
        raise error


def _log_summary(model: ServedModel) -> None:
    info = model.engine.info
    logger.info(
        "ready: %s (%s, %s on %s, attention %s), weights %.2f GiB, context %d, "
        "KV cache %.2f GiB (%.1f sequences of that length)",
        ", ".join(model.names),
        info.architecture,
        info.dtype,
        info.device,
        info.attention_backend,
        info.weight_bytes / 2**30,
        info.max_model_len,
        info.kv_bytes / 2**30,
        longest_at_once(info),
    )


async def load_model(config: ServerConfig, state: ServerState, start_engine: StartEngine) -> ServedModel:
    """Find the files, then load tokenizer and engine concurrently. Raises PlimsollError.

    Cancelling it ends an engine that was started; a download in a thread ends with the process.
    """
    loop = asyncio.get_running_loop()

    def from_thread(stage: str, fraction: float) -> None:
        loop.call_soon_threadsafe(state.loading, stage, fraction)

    def downloads(transfer: Transfer) -> None:
        loop.call_soon_threadsafe(state.loading, DOWNLOAD, transfer.fraction, transfer)

    def find() -> ModelFiles:
        return find_files(config.engine, from_thread, on_transfer=downloads)

    def read() -> Tokenizer:
        tokenizer = load_tokenizer(files)
        _ = tokenizer.longest_piece
        return tokenizer

    files = await in_daemon_thread(find)
    settings = recommended(files, config.serving.generation_config)
    reading = asyncio.ensure_future(in_daemon_thread(read))
    state.loading("start the engine", 0.0)
    try:
        engine = await start_engine(config.engine, state.loading)
    except BaseException:
        reading.cancel()
        raise
    try:
        state.loading("tokenizer", 0.0)
        tokenizer = await reading
    except BaseException:
        await engine.stop()
        raise
    return ServedModel(
        names=config.names,
        engine=engine,
        tokenizer=tokenizer,
        created=int(time.time()),
        chat_stop=files.chat_stop,
        room=QueueLimit(config.serving.max_waiting, config.serving.max_waiting_tokens),
        options=config.serving,
        recommended=settings,
        about=files.about,
        deployment=config.deployment,
    )
