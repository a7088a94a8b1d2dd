"""Entry point of the `plimsoll` process: makes SIGTERM end it at any moment of its start.

With Python's default a pod that is deleted while it loads would use up its whole grace period, for two reasons. The
kernel drops signals to a container's first process if that has no handler, so one that arrives during the imports is
lost. And a Python handler waits for the interpreter, which the reading of a large tokenizer can block for seconds. The
handler is therefore `_exit` in C. Commands with work to finish install their own: the server once its model is loaded,
laptop mode when it starts.
"""

from __future__ import annotations

import ctypes
import signal


def main() -> int:
    """Run the command and return its exit code. A process that SIGTERM ends has the signal's number as its code.

    After a device failure the process exits here, because Python's own exit would wait for the failed device.
    """
    library = ctypes.CDLL(None)
    library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    library.signal(signal.SIGTERM, ctypes.cast(library._exit, ctypes.c_void_p))
    from plimsoll_runtime.cli.main import main as run
    from plimsoll_runtime.errors import ErrorKind
    from plimsoll_runtime.utils.process_exit import end_at_once

    code = run()
    if code == ErrorKind.DEVICE.exit_code:
        end_at_once(code)
    return code
