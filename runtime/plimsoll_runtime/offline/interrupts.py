"""Ctrl-C between two calls of an engine and never within one, where records of blocks and steps are half written.

Only `LLM` has a use for it: a server's engine is in a process that ignores Ctrl-C.
"""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import ClassVar


class Uninterrupted:
    """A `with` block that SIGINT does not break into: what came meanwhile comes at its end, to whoever handles it.

    Only where it would have come: in the main thread, and if Python handles it there at all. What came waits for as
    long as the block takes, or until `let_in`. A block within another leaves it to that one. With `hold=False` it does
    nothing.
    """

    __slots__ = ("_before", "_came", "_hold")
    _outermost: ClassVar[Uninterrupted | None] = None

    def __init__(self, *, hold: bool = True) -> None:
        self._hold = hold
        self._came = False
        self._before: Callable[[int, FrameType | None], object] | None = None

    def __enter__(self) -> Uninterrupted:
        if self._hold and Uninterrupted._outermost is None and threading.current_thread() is threading.main_thread():
            self._take()
            Uninterrupted._outermost = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if Uninterrupted._outermost is self:
            Uninterrupted._outermost = None
            self._give_back()

    def let_in(self) -> None:
        """Hand on what has come, here."""
        if self._came:
            try:
                self._give_back()
            finally:
                # Not always the handler from before: many put another in their place, for the second time.
                self._take()

    def _take(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        if callable(before):
            # First noted, then replaced: an interrupt in between raises here, where nothing has begun.
            self._before = before
            signal.signal(signal.SIGINT, self._note)

    def _give_back(self) -> None:
        """The handler is called, and the signal not raised again: an event loop has heard of it by its file already."""
        before, self._before = self._before, None
        if before is None:
            return
        signal.signal(signal.SIGINT, before)
        if self._came:
            self._came = False
            before(signal.SIGINT, inspect.currentframe())

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True
