"""A process that another one has forked for us: the kernel made us its parent, `subprocess` has not started it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading


class Adopted:
    """What `subprocess.Popen` offers of a process, for one that is our child by adoption (see `forkserver`).

    The methods may be called by several threads. A descriptor of the process (`pidfd_open(2)`) stands for it, so that
    nothing is ever sent to another that got its number.
    """

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError where there is none of that number."""
        self.pid = pid
        self.returncode: int | None = None
        self._descriptor = os.pidfd_open(pid)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        with self._lock:
            if self.returncode is None and (code := self._reap()) is not None:
                self.returncode = code
                os.close(self._descriptor)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has one. Raises subprocess.TimeoutExpired after so many seconds."""
        with self._lock:
            if self.returncode is not None:
                return self.returncode
            descriptor = os.dup(self._descriptor)
        try:
            ends = select.poll()
            ends.register(descriptor, select.POLLIN)
            if not ends.poll(None if timeout is None else timeout * 1000):
                assert timeout is not None
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        finally:
            os.close(descriptor)
        code = self.poll()
        assert code is not None
        return code

    def kill(self) -> None:
        """End it, unless it has ended."""
        with self._lock:
            if self.returncode is None:
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def _reap(self) -> int | None:
        try:
            ended = os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            # Whoever ignores SIGCHLD is never told. `subprocess` says 0 then, and so do we.
            return 0
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
