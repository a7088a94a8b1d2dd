"""Links between the stages of a pipeline: the values of each step, from a rank to the rank of the next stage."""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from queue import SimpleQueue
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.parallel.collectives import CollectivesDifferError
from plimsoll_runtime.parallel.layout import Layout

_HEADER = struct.Struct("!QQ")
"""Number of the step, and bytes of its values."""


class Link(Protocol):
    """A rank's ends of the links to the stages before and after its own."""

    def receive(self, step: int, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """Wait for the values [rows, columns] of a step from the stage before, and return them."""

    def send(self, step: int, values: Tensor) -> None:
        """Send the values of a step to the stage after. Returns at once; the values must not change later."""


class NoLink:
    """The link of a rank whose pipeline has one stage."""

    def receive(self, step: int, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        raise ValueError("there is no stage before")

    def send(self, step: int, values: Tensor) -> None:
        raise ValueError("there is no stage after")


class SocketLink:
    """A link over stream sockets. A thread sends what a socket has no room for, so that a stage never waits for a later
    one.
    """

    def __init__(self, before: socket.socket | None, after: socket.socket | None) -> None:
        """`before`, `after`: blocking sockets to the ranks of these stages, None without such a stage. They are closed
        when the process ends.
        """
        self._before = before
        self._after = after
        self._queue: SimpleQueue[memoryview] = SimpleQueue()
        self._queued = 0
        self._written = 0
        self._error: OSError | None = None
        if after is not None:
            threading.Thread(target=self._run, args=(after,), name="plimsoll-stage", daemon=True).start()

    def receive(self, step: int, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """See `Link`. Raises EngineDeadError if the connection ends, CollectivesDifferError if another step or another
        number of bytes arrives.
        """
        assert self._before is not None
        values = torch.empty(rows, columns, dtype=dtype)
        found, size = _HEADER.unpack(self._read(memoryview(bytearray(_HEADER.size))))
        if (found, size) != (step, values.nbytes):
            raise CollectivesDifferError(
                f"the stages' steps differ: this one waits for {values.nbytes} bytes of its step {step}, and the stage "
                f"before has sent {size} bytes of its step {found}"
            )
        self._read(_bytes_of(values))
        return values

    def send(self, step: int, values: Tensor) -> None:
        """See `Link`. Raises EngineDeadError if the connection has ended."""
        assert self._after is not None
        left = memoryview(_HEADER.pack(step, values.nbytes))
        parts = [left, _bytes_of(values.contiguous())]
        if self._error is None and self._written == self._queued:
            try:
                sent = self._after.sendmsg(parts, (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._error, sent = error, 0
            parts = [part for part in (left[sent:], parts[1][max(0, sent - len(left)) :]) if part]
        if self._error is not None:
            raise EngineDeadError(f"the connection to the stage after has ended: {self._error}")
        for part in parts:
            self._queued += 1
            self._queue.put(part)

    def _read(self, target: memoryview) -> memoryview:
        assert self._before is not None
        done = 0
        while done < len(target):
            try:
                count = self._before.recv_into(target[done:])
            except OSError as error:
                raise EngineDeadError(f"the connection to the stage before has ended: {error}") from error
            if not count:
                raise EngineDeadError("the connection to the stage before has ended")
            done += count
        return target

    def _run(self, after: socket.socket) -> None:
        while self._error is None:
            part = self._queue.get()
            try:
                after.sendall(part)
            except OSError as error:
                self._error = error
            self._written += 1


def _bytes_of(values: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU."""
    data: Any = values.view(torch.uint8).flatten().numpy()
    return memoryview(data)


class TorchLink:
    """A link over torch's process group, of which the ranks are members. With `check`, numbers are compared first.

    Values are sent and received on `device`: with gloo, on the host.
    """

    def __init__(self, layout: Layout, rank: int, device: torch.device, *, check: bool = False) -> None:
        """`rank`: this rank's number."""
        self._before = layout.before(rank)
        self._after = layout.after(rank)
        self._device = device
        self._check = check
        # At most one step for each stage is under way: the values of earlier ones have arrived. (gloo does not notice
        # that by itself.)
        self._most = layout.stages * (1 + check)
        self._sent: deque[tuple[dist.Work, Tensor]] = deque()

    def receive(self, step: int, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """See `Link`. Raises CollectivesDifferError, with `check` only, if another step or another number of values
        arrives.
        """
        values = torch.empty(rows, columns, dtype=dtype, device=self._device)
        if self._check:
            header = torch.empty(2, dtype=torch.int64, device=self._device)
            dist.recv(header, self._before)
            found, size = header.tolist()
            if (found, size) != (step, rows * columns):
                raise CollectivesDifferError(
                    f"the stages' steps differ: this one waits for {rows * columns} values of its step {step}, and the "
                    f"stage before has sent {size} values of its step {found}"
                )
        dist.recv(values, self._before)
        return values

    def send(self, step: int, values: Tensor) -> None:
        values = values.to(self._device).contiguous()
        if self._check:
            self._begin(torch.tensor([step, values.numel()], device=self._device))
        self._begin(values)

    def _begin(self, values: Tensor) -> None:
        """Start to send a tensor, which is kept until it is sent."""
        assert self._after is not None
        work = dist.isend(values, self._after)
        assert work is not None
        self._sent.append((work, values))
        while len(self._sent) > self._most:
            self._sent.popleft()[0].wait()
