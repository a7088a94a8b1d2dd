"""Runs a command that ends when its parent process dies.

It runs as a file (`python -I -S parent_death.py PARENT_PID COMMAND...`), which takes milliseconds: it asks the kernel
for a SIGKILL at the parent's death, then becomes the command. Asking in the child before its exec is not safe if the
parent has threads. Only Linux has this function; elsewhere the command just runs.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind this process to its parent's life, then exec the command. Does not return."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            error = ctypes.get_errno()
            sys.exit(f"cannot bind {command[0]} to its parent process: {os.strerror(error)}")
    if os.getppid() != parent:  # the parent died before the call of prctl
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
