"""Messages between the engine process of a parallel group and its ranks, over a stream socket."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from plimsoll_runtime.engine.protocol.messages import EngineInfo, LoadProgress, ProcessFailed
from plimsoll_runtime.engine.protocol.plan import SequenceOutput, StepPlan
from plimsoll_runtime.engine.step_timing import StepPhase
from plimsoll_runtime.errors import UNREADABLE

_HEADER = struct.Struct("!I")
_PIECE = 2**16
MOST_BYTES = 2**30
"""Largest message between two processes of a group."""


class RankReady(msgspec.Struct, frozen=True, tag="ready"):
    """A rank can run steps. Rank 0 describes the engine, and the prefill of its warm-up: tokens and seconds."""

    info: EngineInfo | None
    prompt_len: int = 0
    prompt_seconds: float = 0.0


class StepDone(msgspec.Struct, frozen=True, tag="done"):
    """A step has ended; see `plan.StepResult`. Outputs have tokens on rank 0 only. `phases`: in nanoseconds.

    `waited`: seconds in which the rank has waited for others since its last report; None: it does not measure them.
    """

    outputs: Sequence[SequenceOutput] = ()
    phases: Sequence[tuple[StepPhase, int]] = ()
    attention_fallbacks: int = 0
    waited: float | None = None


class StepShort(msgspec.Struct, frozen=True, tag="short"):
    """A rank had too little memory for a step, but can run smaller ones."""

    message: str


class BackendFailed(msgspec.Struct, frozen=True, tag="backend-failed"):
    """The attention backend of a rank has failed, and the rank ends."""

    backend: str
    message: str


Report = RankReady | StepDone | StepShort | LoadProgress | ProcessFailed | BackendFailed


class ChannelClosed(Exception):
    """The other end of a channel was closed, because its process has ended."""


class MalformedError(ChannelClosed):
    """The other end sent something that is no message, or a message that is too large."""


class Channel:
    """One end of a channel. `received` is the type of the messages that arrive at it."""

    def __init__(self, end: socket.socket, received: Any, most: int = MOST_BYTES) -> None:
        """`most`: bytes of the largest message that is accepted."""
        self._end = end
        self._read = bytearray()
        self.expect(received, most)

    def expect(self, received: Any, most: int = MOST_BYTES) -> None:
        """Accept messages of another type and size from now on."""
        self._decoder = msgspec.msgpack.Decoder(received)
        self._most = most

    def fileno(self) -> int:
        """Return the descriptor, which is readable if a message or the end of the channel has arrived."""
        return self._end.fileno()

    def send(self, message: bytes) -> None:
        """Send an encoded message (see `encoded`). Raises ChannelClosed."""
        try:
            self._end.sendall(_HEADER.pack(len(message)) + message)
        except OSError as error:
            raise ChannelClosed from error

    def receive(self) -> Any:
        """Wait for a message and return it. Raises ChannelClosed."""
        while (message := self._message()) is None:
            self.read()
        try:
            return self._decoder.decode(message)
        except UNREADABLE as error:
            raise MalformedError(str(error)) from error

    def read(self) -> None:
        """Read once from the socket, and wait until there is something to read. Raises ChannelClosed."""
        try:
            piece = self._end.recv(_PIECE)
        except OSError as error:
            raise ChannelClosed from error
        if not piece:
            raise ChannelClosed
        self._read += piece

    @property
    def has_message(self) -> bool:
        """Whether `receive` would return without reading from the socket. Raises MalformedError."""
        if len(self._read) < _HEADER.size:
            return False
        [length] = _HEADER.unpack_from(self._read)
        if length > self._most:
            raise MalformedError(f"a message of {length} bytes, more than {self._most}")
        return len(self._read) >= _HEADER.size + int(length)

    def shut_down(self) -> None:
        """End the connection in both directions, which any thread may do: a wait in `receive` ends."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def _message(self) -> bytes | None:
        if not self.has_message:
            return None
        [length] = _HEADER.unpack_from(self._read)
        end = _HEADER.size + length
        message = bytes(self._read[_HEADER.size : end])
        del self._read[:end]
        return message


def _plain(value: Any) -> Any:
    """Return a sequence of integers that msgpack does not know, such as a prompt, as a list."""
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no part of a plan")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)


def encoded(message: StepPlan | msgspec.Struct) -> bytes:
    """Return a message as `Channel.send` takes it."""
    return _encoder.encode(message)
