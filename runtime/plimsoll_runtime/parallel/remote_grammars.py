"""Compiles constraints on rank 0, whose sampler follows them, for the engine process that admits requests."""

from __future__ import annotations

import socket
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

    def __init__(self, end: socket.socket) -> None:
        self._channel = Channel(end, Compiled)
        self._pool = ThreadPoolExecutor(1, "plimsoll-grammars")

    def use(self, vocabulary: Vocabulary) -> None:
        """Set the vocabulary that constraints are compiled for."""
        self._pool.submit(self._channel.send, encoded(vocabulary))

    def prepare(self, constraint: Constraint) -> Future[None]:
        """Start to compile a constraint on rank 0. On failure the future raises ConstraintError, and EngineDeadError if
        the rank has ended.
        """
        return self._pool.submit(self._compile, constraint)

    def close(self) -> None:
        """Close the channel. Constraints that wait raise an error."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._channel.close()

    def _compile(self, constraint: Constraint) -> None:
        try:
            self._channel.send(encoded(Compile(constraint)))
            done: Compiled = self._channel.receive()
        except ChannelClosed as error:
            raise EngineDeadError("rank 0 ended while it compiled a constraint") from error
        if done.error is not None:
            raise ConstraintError(done.error)


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
