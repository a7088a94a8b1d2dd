"""The fork server process: imports everything, and forks engine processes.

Started as `python -m plimsoll_runtime.driver.process.fork_server`. It has one thread, computes nothing and touches no
device, so that a forked process can do all of that.
"""

from __future__ import annotations

import os
import sys

from plimsoll_runtime.driver.process.control_socket import STDIN, ChildEnd
from plimsoll_runtime.driver.process.engine_process import ignore_signals, name_process, stand_by
from plimsoll_runtime.driver.process.handshake import Forked, Ready
from plimsoll_runtime.engine.protocol.messages import ProcessFailed
from plimsoll_runtime.errors import ErrorKind

PID_BYTES = 4
NAME = "plimsoll-forks"


def main() -> int:
    """Run the fork server, and each process that it forks."""
    ignore_signals()
    name_process(NAME)
    lifeline = ChildEnd.from_stdin()
    from plimsoll_runtime.driver.process import preload

    preload.freeze_imports()
    lifeline.reply(Ready())
    end = _fork_until_closed(lifeline)
    if end is None:
        return 0
    lifeline.close()
    os.dup2(end, STDIN)
    os.close(end)
    os.setpgid(0, 0)
    preload.choose_kernels()
    return stand_by()


def _fork_until_closed(lifeline: ChildEnd) -> int | None:
    """Fork when ordered to. Return the descriptor of standard input in a forked process; None when the parent
    closes.
    """
    while (taken := lifeline.take()) is not None:
        _, (end,) = taken
        try:
            pid = _fork()
        except OSError as error:
            lifeline.reply(ProcessFailed(ErrorKind.MEMORY.value, f"cannot fork another engine process: {error}"))
        else:
            if pid is None:
                return end
            lifeline.reply(Forked(pid))
        os.close(end)
    return None


def _fork() -> int | None:
    """Fork twice. Return the id of the new process, and None in that process. Raises OSError.

    The intermediate process exits immediately, so the kernel gives its child to the adopting process (see
    `ForkServer`).
    """
    reading, writing = os.pipe()
    try:
        between = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if not between:
        os.close(reading)
        try:
            pid = os.fork()
        except OSError as error:
            os._exit(error.errno or 1)
        if not pid:
            os.close(writing)
            return None
        os.write(writing, pid.to_bytes(PID_BYTES, "little"))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(between, 0)
    if not told:
        number = os.waitstatus_to_exitcode(status)
        raise OSError(number, os.strerror(number) if number > 0 else f"it was killed by signal {-number}")
    return int.from_bytes(told, "little")


if __name__ == "__main__":
    sys.exit(main())
