"""Runs a command that cannot outlive the process which started it.

Executed as a file (`python -I -S parent_death.py PARENT_PID COMMAND...`), so that it costs milliseconds: it asks the
kernel for a SIGKILL on the parent's death and becomes the command. Asking in the child before its exec instead is
not safe in a parent that has threads. Where the kernel offers nothing of the kind (only Linux does), the command
just runs.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, then exec; never returns."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            error = ctypes.get_errno()
            sys.exit(f"cannot tie {command[0]} to its parent: {os.strerror(error)}")
    if os.getppid() != parent:  # it died before the kernel was asked
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
