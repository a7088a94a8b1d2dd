"""A laptop run from start to end: its processes, the files that describe them, and an optional question."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp
from rich.console import Console

from plimsoll_runtime.local.chat.conversation import AskError, Server, stream
from plimsoll_runtime.local.chat.server import first_key
from plimsoll_runtime.local.display import Display
from plimsoll_runtime.local.model import LocalModel
from plimsoll_runtime.local.processes.host_client import HostWatch
from plimsoll_runtime.local.processes.launch import HOST, SERVE, GatewayLaunch, HostLaunch, RuntimeLaunch, threads_each
from plimsoll_runtime.local.processes.status_board import HOST_SLOT, Board, Phase, Status, replica_slots, table_document
from plimsoll_runtime.local.processes.supervisor import Backoff, Keeper
from plimsoll_runtime.local.run_folder import RunFolder, lines_of, write_atomically

LONGEST_ANSWER = 256
ROUTE_SECONDS = 15.0
POLL_SECONDS = 0.1


async def ask(
    session: aiohttp.ClientSession, server: Server, model: str, question: str, write: Callable[[str], None]
) -> None:
    """Send one streaming chat request and pass the pieces of the output to `write`. Raises AskError."""
    await _until_routed(session, server.url, model)
    async for chunk in stream(session, server, _request(model, question)):
        write(chunk.text)


def _request(model: str, question: str) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": LONGEST_ANSWER,
        "temperature": 0,
    }


async def _until_routed(session: aiohttp.ClientSession, url: str, model: str) -> None:
    """Wait until the gateway reports the model as ready. Raises AskError after `ROUTE_SECONDS`."""
    try:
        async with asyncio.timeout(ROUTE_SECONDS):
            while True:
                if await _is_routed(session, url, model):
                    return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise AskError(f"the gateway did not report the model as ready within {ROUTE_SECONDS:g} s") from None


async def _is_routed(session: aiohttp.ClientSession, url: str, model: str) -> bool:
    try:
        async with session.get(f"{url}/v1/models/{model}") as response:
            return response.status == 200 and (await response.json())["ready"] is True
    except aiohttp.ClientError:
        return False  # the gateway is starting


GATEWAY_SLOT = "gateway"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Once the gateway has finished its requests, a runtime has no work left.
RUNTIME_STOP_SECONDS = 5.0
GATEWAY_STOP_MARGIN = 3.0
# With --once, a process that has ended this many times counts as failed.
MOST_ENDS = 3


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run. `once` ends it after the output for `question`. `host_options` are for the host process, and
    `pool` names its RuntimePool, if it has one.
    """

    models: tuple[LocalModel, ...]
    url: str
    question: str | None
    once: bool
    drain_seconds: float
    serve: Sequence[str] = SERVE
    host: Sequence[str] = HOST
    host_options: Sequence[str] = ()
    pool: str = ""


class Run:
    """One `plimsoll up`. The caller holds the lock of `folder` and owns `sock`, the gateway's listening socket."""

    def __init__(self, options: RunOptions, sock: socket.socket, folder: RunFolder, console: Console) -> None:
        self._options = options
        self._sock = sock
        self._folder = folder
        self._began = datetime.now(UTC)
        slots = [slot for model in options.models for slot in replica_slots(model)]
        self._board = Board(dict.fromkeys([*slots, GATEWAY_SLOT]))
        self._board.listen(lambda slot, before, now: self._publish())
        title = f"pool {options.pool}" if options.pool else "memory"
        self._watch = HostWatch(title, folder.host_access, self._changed)
        self._display = Display(self._board, console, self._watch.rows)
        self._stop = asyncio.Event()
        self._keepers: dict[str, Keeper] = {}

    async def go(self) -> int:
        """Run until a signal, or with `once` until the output. Return the exit code."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN or number is not signal.SIGHUP:  # nohup
                loop.add_signal_handler(number, self._signalled)
        self._publish()
        async with aiohttp.ClientSession(trust_env=False) as session:
            with self._display:
                self._make_keepers(session)
                kept = [asyncio.create_task(keeper.run()) for keeper in self._keepers.values()]
                try:
                    return await self._until_done(session, kept)
                finally:
                    await self._end()
                    await asyncio.gather(*kept)

    def _make_keepers(self, session: aiohttp.ClientSession) -> None:
        options = self._options
        threads = threads_each(options.models)
        together = [model for model in options.models if model.in_host and model.replicas]
        if together:
            host = HostLaunch(HOST_SLOT, together, options.host_options, self._folder, options.host)
            self._keepers[HOST_SLOT] = Keeper(HOST_SLOT, host, self._board, session, Backoff())
        for model in (model for model in options.models if not model.in_host):
            for slot in replica_slots(model):
                share = None if model.sets_threads else threads
                make = RuntimeLaunch(model, slot, share, self._folder, options.serve)
                self._keepers[slot] = Keeper(slot, make, self._board, session, Backoff())
        gateway = GatewayLaunch(GATEWAY_SLOT, options.url, self._sock.fileno(), options.drain_seconds, self._folder)
        self._keepers[GATEWAY_SLOT] = Keeper(GATEWAY_SLOT, gateway, self._board, session, Backoff())

    async def _until_done(self, session: aiohttp.ClientSession, kept: Sequence[asyncio.Task[None]]) -> int:
        """Wait for the end and return the exit code: with `once` that of the question; if no model can run, that of the
        failure; after a signal 0.
        """
        talk = asyncio.create_task(self._talk(session))
        stop = asyncio.create_task(self._stop.wait())
        over = asyncio.create_task(self._until_all_failed())
        watch = asyncio.create_task(self._watch.run(session))
        tasks = {talk, stop, over, watch}
        try:
            await asyncio.wait({talk, stop, over, *kept}, return_when=asyncio.FIRST_COMPLETED)
            ended = next((task for task in (talk, over) if task.done()), None)
            return 0 if ended is None else ended.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _until_all_failed(self) -> int:
        """Wait until no model can be served any more, and return the exit code. With `once`, wait forever: `_talk`
        decides.
        """
        slots = {slot for model in self._options.models for slot in replica_slots(model)}
        statuses = self._board.statuses

        def failed() -> list[Status]:
            gateway = statuses[GATEWAY_SLOT]
            if gateway.phase is Phase.FAILED:
                return [gateway]
            ended = [statuses[slot] for slot in slots if statuses[slot].phase is Phase.FAILED]
            return ended if len(ended) == len(slots) else []

        if self._options.once:
            await asyncio.Event().wait()
        await self._board.until(lambda: bool(failed()))
        return failed()[0].code or 1

    async def _talk(self, session: aiohttp.ClientSession) -> int:
        """Wait until the first model is ready, send the question, print how to continue. Returns only with `once`."""
        options = self._options
        asked = options.models[0]
        await self._board.until(lambda: self._is_ready(asked) or self._failure(asked) is not None)
        code = 0
        if options.question is not None:
            failure = None if self._is_ready(asked) else self._failure(asked)
            if failure is None:
                code = await self._put_question(session, asked, options.question)
            else:
                slot, status = failure
                self._display.line(f"plimsoll up: {slot} does not become ready: {status.error}", "red")
                code = (status.code or 1) if status.phase is Phase.FAILED else 1
        if options.once:
            return code
        await self._board.until(lambda: any(map(self._is_ready, options.models)))
        ready = next(model for model in options.models if self._is_ready(model))
        self._display.line(_how_to_go_on(options.url, ready, options.question or "Hello!"))
        await asyncio.Event().wait()
        return code

    async def _put_question(self, session: aiohttp.ClientSession, model: LocalModel, question: str) -> int:
        with self._display.paused():
            self._display.line(f"\n> {question}", "bold")
            try:
                server = Server(self._options.url, _api_key(model))
                await ask(session, server, model.served_names[0], question, _to_stdout)
            except AskError as error:
                _to_stdout("\n")
                self._display.line(f"plimsoll up: the question failed: {error}", "red")
                return 1
            _to_stdout("\n")
            return 0

    def _is_ready(self, model: LocalModel) -> bool:
        """Return whether requests for the model would be answered. A model with 0 replicas counts as ready."""
        statuses = self._board.statuses
        phases = {statuses[slot].phase for slot in replica_slots(model)}
        return statuses[GATEWAY_SLOT].phase is Phase.READY and (Phase.READY in phases or not phases)

    def _failure(self, model: LocalModel) -> tuple[str, Status] | None:
        """Return a failed process that the question depends on. With `once`, repeated restarts count as failure."""
        for slot in (*replica_slots(model), GATEWAY_SLOT):
            status = self._board.statuses[slot]
            tired = self._options.once and status.phase is Phase.WAITING and status.ends >= MOST_ENDS
            if status.phase is Phase.FAILED or tired:
                return slot, status
        return None

    async def _end(self) -> None:
        """Stop the gateway, which lets running requests finish, then the runtimes, which are idle by then."""
        if self._keepers[GATEWAY_SLOT].is_alive:
            self._display.line("stopping after running requests finish (Ctrl-C again to stop immediately)")
        self._sock.close()
        await self._keepers[GATEWAY_SLOT].stop(self._options.drain_seconds + GATEWAY_STOP_MARGIN)
        await asyncio.gather(*(keeper.stop(RUNTIME_STOP_SECONDS) for keeper in self._keepers.values()))

    def _changed(self, text: str, style: str) -> None:
        self._display.change(text, style)

    def _signalled(self) -> None:
        if self._stop.is_set():
            for keeper in self._keepers.values():
                keeper.kill()
        self._stop.set()

    def _publish(self) -> None:
        """Write the gateway's routing table and the record for `plimsoll status`."""
        statuses = self._board.statuses
        write_atomically(self._folder.table, table_document(self._options.models, statuses, self._began))
        self._folder.write(
            {
                "pid": os.getpid(),
                "url": self._options.url,
                "began": self._began.isoformat(),
                "models": [
                    {
                        "namespace": model.namespace,
                        "name": model.name,
                        "servedNames": list(model.served_names),
                        "source": model.source,
                        "revision": model.revision,
                        "replicas": [self._entry(slot) for slot in replica_slots(model)],
                    }
                    for model in self._options.models
                ],
                "gateway": self._entry(GATEWAY_SLOT),
            }
        )

    def _entry(self, slot: str) -> dict[str, object]:
        status = self._board.statuses[slot]
        return {
            "slot": slot,
            "phase": status.phase.value,
            "detail": status.detail,
            "pid": status.pid,
            "url": status.url,
            "log": str(self._folder.log(slot)),
            "restarts": status.ends,
            "findings": lines_of(self._folder.findings(slot)),
        }


def _api_key(model: LocalModel) -> str | None:
    """Return one of the API keys of the runtime, or None."""
    return first_key({**os.environ, **dict(model.environment)})


def _to_stdout(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _how_to_go_on(url: str, model: LocalModel, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    body = json.dumps({"model": model.served_names[0], "messages": messages, "temperature": 0})
    return f"""
Serving {model.served_names[0]} at {url}/v1

  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d {shlex.quote(body)}

To stop: Ctrl-C here, or `plimsoll down` in another terminal."""
