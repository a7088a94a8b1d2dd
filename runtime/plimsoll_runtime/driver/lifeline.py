"""The socket that is an engine process's standard input: orders come with descriptors, replies go back, and it ends
when the parent does.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence

import msgspec

from plimsoll_runtime.driver.start import Order, Reply

STDIN = 0
PIECE = 65536
MOST_DESCRIPTORS = 4


class ChildEnd:
    """The process's side."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._decoder = msgspec.json.Decoder(Order)
        self._read, self._descriptors = bytearray(), list[int]()

    @classmethod
    def from_stdin(cls) -> ChildEnd:
        """Of this process. Ends it with a word to who started it by hand."""
        try:
            return cls(socket.socket(fileno=os.dup(STDIN)))
        except OSError:
            sys.exit("an engine's process is started by its client, not by hand: `plimsoll serve` does it")

    def take(self) -> tuple[Order, list[int]] | None:
        """Wait for the next order, and the descriptors that came with it; None when the parent has gone."""
        while b"\n" not in self._read:
            piece, found, _, _ = socket.recv_fds(self._end, PIECE, MOST_DESCRIPTORS)
            if not piece:
                return None
            self._read += piece
            self._descriptors += found
        line, _, self._read = self._read.partition(b"\n")
        order = self._decoder.decode(line)
        ours, self._descriptors = self._descriptors[: order.descriptors], self._descriptors[order.descriptors :]
        return order, ours

    def reply(self, reply: Reply) -> None:
        """Raises OSError when the parent has gone."""
        self._end.sendall(_line(reply))

    def close(self) -> None:
        """Close this process's descriptor of it; its standard input stays."""
        self._end.close()


class ParentEnd:
    """The side of whoever started the process. `OSError` means that the process has gone."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
        self._read = bytearray()
        self._waiting = self._closing = False

    def give(self, order: Order, descriptors: Sequence[int] = ()) -> None:
        """Give an order. Raises OSError."""
        line = _line(order)
        self.socket.setblocking(True)
        sent = socket.send_fds(self.socket, [line], descriptors) if descriptors else self.socket.send(line)
        self.socket.sendall(line[sent:])

    async def reply(self) -> Reply:
        """The next reply, for one who waits at a time. Raises OSError, also where it is closed meanwhile."""
        self.socket.setblocking(False)
        self._waiting = True
        try:
            while b"\n" not in self._read:
                await self._read_more()
        finally:
            self._waiting = False
            if self._closing:
                self.socket.close()
        line, _, rest = self._read.partition(b"\n")
        self._read = rest
        return self._decoder.decode(line)

    def close(self) -> None:
        """Close it, which ends the process. May be called again."""
        if self._waiting:
            # An event loop is not told of a descriptor that is closed; it is told of the end of what comes.
            self._closing = True
            self.socket.shutdown(socket.SHUT_RDWR)
        else:
            self.socket.close()

    async def _read_more(self) -> None:
        piece = await asyncio.get_running_loop().sock_recv(self.socket, PIECE)
        if not piece:
            raise ConnectionResetError("the process has closed its end")
        self._read += piece


def _line(message: Order | Reply) -> bytes:
    return msgspec.json.encode(message) + b"\n"
