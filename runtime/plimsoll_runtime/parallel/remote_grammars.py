"""Compiles constraints on rank 0, whose sampler follows them, for the engine process that admits requests."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.engine.protocol.messages import Vocabulary
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.parallel.channel import Channel, ChannelClosed, encoded
from plimsoll_runtime.structured.matcher import Grammars


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
        self._told = self._closed = False
        self._change = threading.Condition()
        self._pool = ThreadPoolExecutor(1, "plimsoll-grammars")

    def connect(self, end: socket.socket) -> None:
        """Use a new rank 0, to which the socket leads. Constraints that the one before it did not compile are sent
        again.
        """
        with self._change:
            self._channel, self._told = Channel(end, Compiled), False
            self._change.notify_all()

    def use(self, vocabulary: Vocabulary) -> None:
        """Set the vocabulary that constraints are compiled for."""
        self._vocabulary = vocabulary

    def prepare(self, constraint: Constraint) -> Future[None]:
        """Start to compile a constraint on rank 0. On failure the future raises ConstraintError."""
        return self._pool.submit(self._compile, constraint)

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
            told, self._told = self._told, True
        try:
            if not told and self._vocabulary is not None:
                channel.send(encoded(self._vocabulary))
            channel.send(encoded(Compile(constraint)))
            done: Compiled = channel.receive()
        except ChannelClosed:
            with self._change:
                if self._channel is channel:
                    self._channel = None
            return None
        return done


def compile_for(end: socket.socket, grammars: Grammars) -> None:
    """Compile the constraints that arrive at rank 0 until the channel is closed."""
    channel = Channel(end, Compile | Vocabulary)
    while True:
        try:
            message: Compile | Vocabulary = channel.receive()
            if isinstance(message, Vocabulary):
                grammars.use(message)
            else:
                channel.send(encoded(_compiled(grammars, message.constraint)))
        except ChannelClosed:
            return


def _compiled(grammars: Grammars, constraint: Constraint) -> Compiled:
    try:
        grammars.prepare(constraint).result()
    except ConstraintError as error:
        return Compiled(str(error))
    return Compiled()
