"""Where a `plimsoll` process begins: from here on SIGTERM ends it at once, whatever it is doing.

Two things would otherwise keep a pod that is deleted while it loads for its whole grace. The kernel drops a signal to a
container's first process for which that has no handler, so one that comes during the imports is lost. And a handler in
Python waits for the interpreter, which reading a large tokenizer holds for seconds. So the handler is `_exit` in C. A
command that has something to finish replaces it: the server once its model is loaded, laptop mode at once.
"""

from __future__ import annotations

import ctypes
import signal


def main() -> int:
    """Run the command; returns its exit code. One that SIGTERM ends has the signal's number for a code.

    Where a device has failed the process ends here: a host's own memory on it would be given back in Python's end.
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
