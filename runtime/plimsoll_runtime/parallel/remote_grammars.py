"""Compiles constraints on rank 0, whose sampler follows them, for the engine process that admits requests."""

from __future__ import annotations

import logging
import socket
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import msgspec

from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.engine.protocol.messages import Vocabulary
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.parallel.channel import Channel, ChannelClosed, encoded
from plimsoll_runtime.structured.matcher import MOST_KEPT, Grammars

logger = logging.getLogger(__name__)


class Compile(msgspec.Struct, frozen=True, tag="compile"):
    """Compiles a constraint."""

    constraint: Constraint


class Compiled(msgspec.Struct, frozen=True, tag="compiled"):
    """A constraint has been compiled, or cannot be: `error` says why."""

    error: str | None = None


class RemoteGrammars:
    """The `Compiler` of a parallel group's engine. A thread asks rank 0 over a channel, one constraint at a time."""

    def __init__(self) -> None:
        self._vocabulary: Vocabulary | None = None
        self._channel: Channel | None = None
        self._closed = False
        self._kept: OrderedDict[Constraint, Future[None]] = OrderedDict()
        self._change = threading.Condition()
        self._asking = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "plimsoll-grammars")

    def connect(self, end: socket.socket) -> None:
        """Use a new rank 0, to which the socket leads, and give it the vocabulary before it runs a step.

        Constraints that the rank before it did not compile are sent again.
        """
        channel = Channel(end, Compiled)
        if self._vocabulary is not None:
            with suppress(ChannelClosed):
                self._ask(channel, self._vocabulary)
        with self._change:
            self._channel = channel
            self._kept.clear()
            self._change.notify_all()

    def use(self, vocabulary: Vocabulary) -> None:
        """Set the vocabulary that constraints are compiled for. Rank 0 has it when this returns."""
        self._vocabulary = vocabulary
        if (channel := self._channel) is not None:
            # If the rank ends during that, its replacement gets the vocabulary in `connect`.
            with suppress(ChannelClosed):
                self._ask(channel, vocabulary)

    def prepare(self, constraint: Constraint) -> Future[None]:
        """Start to compile a constraint on rank 0, unless it has compiled it or is compiling it. On failure the future
        raises ConstraintError.
        """
        with self._change:
            found = self._kept.get(constraint)
            if found is None or (found.done() and found.exception() is not None):
                found = self._kept[constraint] = self._pool.submit(self._compile, constraint)
            self._kept.move_to_end(constraint)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return found

    def close(self) -> None:
        """Stop compiling. Constraints that wait raise EngineDeadError."""
        with self._change:
            self._closed, self._channel = True, None
            self._change.notify_all()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, constraint: Constraint) -> None:
        while (done := self._answer(constraint)) is None:
            pass
        if done.error is not None:
            raise ConstraintError(done.error)

    def _answer(self, constraint: Constraint) -> Compiled | None:
        """Return rank 0's answer; None if it ended instead."""
        with self._change:
            self._change.wait_for(lambda: self._channel is not None or self._closed)
            channel = self._channel
            if channel is None:
                raise EngineDeadError("the engine has ended")
        try:
            return self._ask(channel, Compile(constraint))
        except ChannelClosed:
            with self._change:
                if self._channel is channel:
                    self._channel = None
            return None

    def _ask(self, channel: Channel, message: Compile | Vocabulary) -> Compiled:
        with self._asking:
            channel.send(encoded(message))
            done: Compiled = channel.receive()
        return done


def compile_for(end: socket.socket, grammars: Grammars) -> None:
    """Compile the constraints that arrive at rank 0 until the channel is closed."""
    channel = Channel(end, Compile | Vocabulary)
    while True:
        try:
            message: Compile | Vocabulary = channel.receive()
            if isinstance(message, Vocabulary):
                grammars.use(message)
                channel.send(encoded(Compiled()))
            else:
                channel.send(encoded(_compiled(grammars, message.constraint)))
        except ChannelClosed:
            return


def _compiled(grammars: Grammars, constraint: Constraint) -> Compiled:
    try:
        grammars.prepare(constraint).result()
    except ConstraintError as error:
        return Compiled(str(error))
    except Exception as error:
        logger.exception("a constraint could not be compiled")
        return Compiled(f"cannot be compiled: {type(error).__name__}: {error}")
    return Compiled()
