"""The socket that is an engine process's standard input: orders come with descriptors, replies go back, and it ends
when the parent does.
"""

from __future__ import annotations

import socket

import msgspec

from plimsoll_runtime.driver.start import Order, Reply

PIECE = 65536
MOST_DESCRIPTORS = 4


class ChildEnd:
    """The process's side."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._decoder = msgspec.json.Decoder(Order)

    def take(self) -> tuple[Order, list[int]] | None:
        """Wait for the next order, and the descriptors that came with it; None when the parent has gone."""
        line, descriptors = bytearray(), list[int]()
        while not line.endswith(b"\n"):
            piece, found, _, _ = socket.recv_fds(self._end, PIECE, MOST_DESCRIPTORS)
            if not piece:
                return None
            line += piece
            descriptors += found
        return self._decoder.decode(line), descriptors

    def reply(self, reply: Reply) -> None:
        """Raises OSError when the parent has gone."""
        self._end.sendall(_line(reply))


def send(end: socket.socket, order: Order, descriptors: list[int]) -> None:
    """Give an order. Raises OSError when the process has gone."""
    line = _line(order)
    sent = socket.send_fds(end, [line], descriptors) if descriptors else end.send(line)
    end.sendall(line[sent:])


def _line(message: Order | Reply) -> bytes:
    return msgspec.json.encode(message) + b"\n"
