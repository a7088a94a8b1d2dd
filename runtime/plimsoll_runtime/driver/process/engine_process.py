"""The engine process: reads a bounded number of commands between steps, and sends one message for each step.

Started as `python -m plimsoll_runtime.driver.process.engine_process`, or forked from a process that has imported
everything (see `fork_server`). Its standard input is a socket on which a `Start` record arrives (see `control_socket`),
right away or when a model wakes. The socket stays open as long as the parent lives; the process ends with it. (The
kernel's parent-death signal follows the *thread* that started the process, not the parent process.) The process ignores
signals, which the parent handles.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec
import zmq

from plimsoll_runtime.driver.clients.requests import PromptStore
from plimsoll_runtime.driver.process.control_socket import STDIN, ChildEnd
from plimsoll_runtime.driver.process.handshake import Measure, Needs, Prepare, Ready, Start, StartRank
from plimsoll_runtime.driver.process.heartbeat import Pulse
from plimsoll_runtime.driver.process.progress_report import ProgressReport
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import (
    AbortRequests,
    AddAnswer,
    AddRequest,
    Command,
    DropPrompt,
    EngineStats,
    Event,
    ProcessFailed,
    RequestOutput,
    ResetPrefixCache,
    Resize,
    Resized,
    SharePrompt,
    Shutdown,
    StepOutputs,
    TracedStep,
    Vocabulary,
)
from plimsoll_runtime.engine.step_timing import StepPhase
from plimsoll_runtime.errors import DeviceLostError, ErrorKind, PlimsollError, UsageError
from plimsoll_runtime.execution.device.faults import FaultKind, fault_of
from plimsoll_runtime.utils.log_prefix import prefix_log
from plimsoll_runtime.utils.process_exit import end_at_once
from plimsoll_runtime.weights.image import Image
from plimsoll_telemetry.logs import begin_log

logger = logging.getLogger(__name__)

Factory = Callable[..., EngineCore]
"""Builds an engine from a config and a progress callback; see `handshake.Start`."""

NAME = "plimsoll-engine"
"""Process name in `ps`; the kernel keeps fifteen characters."""
PARENT_CHECK_SECONDS = 5.0
"""Interval of checks that the parent lives, in case a process that it forked still holds the other end of standard
input."""
COMMANDS_AT_ONCE = 128
BYTES_AT_ONCE = 2**20
"""Limits on the commands taken between two steps: their number, and the bytes after which no more are taken. The others
wait for the next step, so that running streams are not delayed."""
RECOVERY_SECONDS = 10.0
"""Time for an engine to notice that a process which computes its steps hangs."""
LINGER_MS = 5000


class EngineProcess:
    """The main loop: take available commands, step while there is work, wait while there is none."""

    def __init__(self, start: Start, page: int, image: Image | None = None) -> None:
        self._start = start
        self._given = {k: v for k, v in (("image", image), ("grant", start.grant)) if v is not None}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._commands = self._context.socket(zmq.PULL)
        self._events = self._context.socket(zmq.PUSH)
        for end in (self._commands, self._events):
            end.set(zmq.SNDHWM, 0)
            end.set(zmq.RCVHWM, 0)
            end.set(zmq.LINGER, LINGER_MS)
        self._commands.connect(start.commands)
        self._events.connect(start.events)
        self._decoder = msgspec.msgpack.Decoder(Command)
        self._encoder = msgspec.msgpack.Encoder()
        self._prompts = PromptStore()
        self._report = ProgressReport(self._send)
        self._told = EngineStats()
        self._resizes: list[int] = []
        self._pulse = Pulse(page)
        self._core: EngineCore | None = None
        os.close(page)

    def run(self) -> int:
        """Load and serve until shutdown; return the exit code. An error is sent to the parent before the end."""
        try:
            core = _factory(self._start.factory)(self._start.config, self._report, **self._given)
            # Lost processes are replaced by the engine itself, which must not be killed before it notices the loss.
            margin = 0.0 if core.recovery is None else RECOVERY_SECONDS
            self._core = core
            core.on_step = lambda seconds: self._pulse.expect(seconds + margin)
            # Loaded objects stay for good, so the collector need not scan them during a step.
            gc.collect()
            gc.freeze()
            self._send(core.info)
            if core.recovery is not None:
                # /health of a group shows some of them before the first step.
                self._tell([], core.stats)
            while self._take_commands(core):
                self._step(core)
        except Exception as error:
            if not isinstance(error, PlimsollError):
                logger.exception("the engine failed")
            failed = failed_by(error)
            self._send(failed)
            return ErrorKind(failed.kind).exit_code
        return 0

    def drain(self) -> None:
        """Keep the members of a parallel group until the end of this process, from any thread.

        It does nothing before the engine is ready, as there are no requests to finish.
        """
        if self._core is not None and self._core.recovery is not None:
            self._core.recovery.drain()

    def close(self) -> None:
        """Close the sockets after queued messages are sent."""
        self._context.destroy(LINGER_MS)

    def _take_commands(self, core: EngineCore) -> bool:
        """Execute commands that have arrived; without work, wait for one. Return False on a shutdown."""
        if not core.has_work:
            self._pulse.rest()
            self._await_command(core)
        self._pulse.expect(self._start.config.step_timeout)
        refused: list[RequestOutput] = []
        commands = size = 0
        while commands < COMMANDS_AT_ONCE and size < BYTES_AT_ONCE and (message := self._next_message()) is not None:
            commands, size = commands + 1, size + len(message)
            command: Command = self._decoder.decode(message)
            if isinstance(command, Shutdown):
                return False
            refused.extend(self._carry_out(core, command))
        if refused or not core.has_work:
            self._tell(refused, core.stats)
        return True

    def _await_command(self, core: EngineCore) -> None:
        """Return when a command arrives, or processes that compute steps are lost."""
        if core.recovery is None:
            self._commands.poll()
            return
        poller = zmq.Poller()
        poller.register(self._commands, zmq.POLLIN)
        for descriptor in core.recovery.descriptors:
            poller.register(descriptor, zmq.POLLIN)
        if any(found != self._commands for found, _ in poller.poll()):
            core.check()

    def _next_message(self) -> bytes | None:
        try:
            message = self._commands.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        self._pulse.took()
        return message

    def _carry_out(self, core: EngineCore, command: Command) -> list[RequestOutput]:
        """Execute a command; return outputs for its client."""
        if isinstance(command, AddAnswer):
            return _add(core, self._prompts.request(command))
        if isinstance(command, AbortRequests):
            core.abort(command.request_ids)
        elif isinstance(command, SharePrompt):
            self._prompts.share(command)
        elif isinstance(command, DropPrompt):
            self._prompts.drop(command)
        elif isinstance(command, ResetPrefixCache):
            core.reset_prefix_cache()
        elif isinstance(command, Vocabulary):
            core.use(command)
        elif isinstance(command, Resize):
            self._resize(core, command)
        return []

    def _resize(self, core: EngineCore, command: Resize) -> None:
        try:
            core.resize(command.kv_bytes)
        except UsageError as error:
            self._send(Resized(command.key, core.kv_bytes, str(error)))
        else:
            self._resizes.append(command.key)

    def _tell_resized(self, core: EngineCore) -> None:
        """Answer all resize requests, once the cache has the size of the last one."""
        if self._resizes and not core.resizing:
            for key in self._resizes:
                self._send(Resized(key, core.kv_bytes))
            self._resizes.clear()

    def _step(self, core: EngineCore) -> None:
        if core.has_work:
            done = core.step()
            self._pulse.expect(self._start.config.step_timeout)
            self._tell(done.outputs, done.stats, done.traced)
            self._tell_resized(core)
            if core.timeline is not None:
                core.timeline.lap(StepPhase.MESSAGE)

    def _tell(self, outputs: list[RequestOutput], stats: EngineStats, traced: TracedStep | None = None) -> None:
        """Send outputs and statistics, if there are new ones."""
        if outputs or stats != self._told:
            self._told = stats
            self._send(StepOutputs(outputs, stats, traced))

    def _send(self, event: Event) -> None:
        self._events.send(self._encoder.encode(event))


def _add(core: EngineCore, request: AddRequest) -> list[RequestOutput]:
    """Queue a request; return an error output if it cannot be served."""
    try:
        core.add(request)
    except UsageError as error:
        return [RequestOutput(request.request_id, finish_reason="error", error=str(error))]
    return []


def _factory(path: str) -> Factory:
    module, _, name = path.partition(":")
    factory: Factory = getattr(importlib.import_module(module), name)
    return factory


def failed_by(error: Exception) -> ProcessFailed:
    """Return the ProcessFailed event of an error. A device failure takes precedence over errors that follow from it."""
    fault = fault_of(error)
    if not fault.process_can_go_on:
        return ProcessFailed(ErrorKind.DEVICE.value, fault.text, device_lost=not fault.device_can_go_on)
    if isinstance(error, PlimsollError):
        return ProcessFailed(error.kind.value, str(error), device_lost=isinstance(error, DeviceLostError))
    kind = ErrorKind.MEMORY if fault.kind is FaultKind.MEMORY else ErrorKind.ENGINE
    return ProcessFailed(kind.value, f"{type(error).__name__}: {error}")


def _await_start(lifeline: ChildEnd) -> tuple[Start | StartRank, list[int]]:
    """Execute orders until `Start` or `StartRank` arrives; exit if the parent ends."""
    while (taken := lifeline.take()) is not None:
        order, descriptors = taken
        if isinstance(order, Start | StartRank):
            return order, descriptors
        if isinstance(order, Prepare):
            _prepare(order)
            continue
        assert isinstance(order, Measure)
        lifeline.reply(_measured(order))
    sys.exit(ErrorKind.ENGINE.exit_code)


def _prepare(order: Prepare) -> None:
    # `Start` tries the import again and reports errors; `Prepare` has no reply.
    with contextlib.suppress(ImportError, AttributeError):
        _factory(order.factory)


def _measured(order: Measure) -> Needs | ProcessFailed:
    from plimsoll_runtime.driver.estimate import measure

    try:
        return measure(order.config, order.kv)
    except Exception as error:
        if not isinstance(error, PlimsollError):
            logger.exception("cannot estimate a model's memory")
        return failed_by(error)


def _start_following(start: Start | StartRank, lifeline: ChildEnd, drain: Callable[[], None]) -> None:
    """Run `_follow_parent` in a thread."""
    threading.Thread(target=_follow_parent, args=(start.parent, lifeline, drain), daemon=True).start()


def _follow_parent(parent: int, lifeline: ChildEnd, drain: Callable[[], None]) -> NoReturn:
    """Call `drain` on the parent's order, and end this process when the parent has ended, whatever the main thread is
    doing.
    """
    while os.getppid() == parent:
        readable, _, _ = select.select([STDIN], [], [], PARENT_CHECK_SECONDS)
        try:
            if readable and lifeline.take() is None:
                break
        except ConnectionResetError:  # the parent left data unread
            break
        if readable:
            drain()
    os._exit(ErrorKind.ENGINE.exit_code)


def ignore_signals() -> None:
    """Ignore signals of a terminal or supervisor, which the parent handles."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def name_process(name: str) -> None:
    """Set the name that `ps` shows; forked processes have the command line of the forking process."""
    Path("/proc/self/comm").write_text(name)


def main() -> int:
    """Run a process that is started for one model."""
    ignore_signals()
    name_process(NAME)
    return _serve(ChildEnd.from_stdin())


def stand_by() -> int:
    """Run a process that has imported everything: report that, and wait for a model."""
    name_process(NAME)
    lifeline = ChildEnd.from_stdin()
    lifeline.reply(Ready())
    return _serve(lifeline)


def _label(start: Start | StartRank) -> str:
    """Return the rank and the member of this process, as they begin each message of its log."""
    if isinstance(start, Start):
        return f"member {start.config.group.index}: " if start.config.group.size > 1 else ""
    return f"rank {start.rank}: " if start.member is None else f"member {start.member}: rank {start.rank}: "


def _serve(lifeline: ChildEnd) -> int:
    start, (page, *images) = _await_start(lifeline)
    begin_log(*start.log)
    if label := _label(start):
        prefix_log(label)
    if isinstance(start, StartRank):
        from plimsoll_runtime.driver.process.rank_process import run_rank

        _start_following(start, lifeline, lambda: None)
        return run_rank(start, page, *images)
    process = EngineProcess(start, page, Image(images[0]) if start.has_image else None)
    _start_following(start, lifeline, process.drain)
    try:
        code = process.run()
    finally:
        process.close()
    if code == ErrorKind.DEVICE.exit_code:
        end_at_once(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
