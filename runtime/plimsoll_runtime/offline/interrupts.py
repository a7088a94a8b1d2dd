"""Delays Ctrl-C until between two engine calls, because within one the records of blocks and steps are half written.

Only `LLM` uses it: a server's engine runs in a process that ignores Ctrl-C.
"""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import ClassVar


class Uninterrupted:
    """A `with` block that SIGINT does not interrupt: the previous handler is called at the end of the block.

    It applies only in the main thread, and only if Python handles SIGINT there. A signal waits until the block ends
    or calls `let_in`. A nested block leaves the signal to the outer one. With `hold=False` the block does nothing.
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
        """Call the previous handler if a signal has arrived."""
        if self._came:
            try:
                self._give_back()
            finally:
                # The handler may have changed: many handlers install another one for the second signal.
                self._take()

    def _take(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        if callable(before):
            # Store the handler first: an interrupt between the two lines raises here, before anything has started.
            self._before = before
            signal.signal(signal.SIGINT, self._note)

    def _give_back(self) -> None:
        """Restore the previous handler, and call it if a signal has arrived. (Raising the signal again is no
        alternative: an event loop has already read it from its wake-up file.)
        """
        before, self._before = self._before, None
        if before is None:
            return
        signal.signal(signal.SIGINT, before)
        if self._came:
            self._came = False
            before(signal.SIGINT, inspect.currentframe())

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True
