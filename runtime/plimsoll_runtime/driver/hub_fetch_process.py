"""The process that fetches one snapshot of a hub for `hub_fetch`.

Started as `python -m plimsoll_runtime.driver.hub_fetch_process`. It ends as soon as its standard input
does: it was called off, or whoever started it is gone.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from pathlib import Path

import msgspec

from plimsoll_runtime.driver.hub_fetch import Answer, Failed, Fetched, FetchRequest
from plimsoll_runtime.errors import SourceError
from plimsoll_runtime.weights.sources.hub import fetch_snapshot

STDIN, STDOUT, STDERR = 0, 1, 2
DESCRIPTORS = Path("/proc/self/fd")
USELESS = re.compile(r"\.[0-9a-f]{8}\.incomplete\Z")
"""How the hub's library ends the name of a file that it writes and would not go on with: each fetch has its own name.
Older versions go on with a file `.incomplete`."""


def main() -> int:
    """Entry point of the process."""
    answers = os.fdopen(os.dup(STDOUT), "wb")
    os.dup2(STDERR, STDOUT)  # what a library prints is no answer
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 1
    threading.Thread(target=_end_with_input, daemon=True).start()
    answer = _answer(msgspec.json.decode(line, type=FetchRequest))
    with contextlib.suppress(BrokenPipeError), answers:
        answers.write(msgspec.json.encode(answer) + b"\n")
    return 0


def _answer(wanted: FetchRequest) -> Answer:
    try:
        return Fetched(str(fetch_snapshot(wanted.model_id, wanted.revision, wanted.access, wanted.file)))
    except SourceError as error:
        return Failed(error.kind.value, str(error))


def _end_with_input() -> None:
    while os.read(STDIN, 1):
        pass
    remove_useless()
    os._exit(1)


def remove_useless() -> None:
    """Remove files that this process writes, and that no other fetch could go on with."""
    for descriptor in DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):  # it is closed meanwhile, or moved to where it belongs
            path = descriptor.readlink()
            if USELESS.search(path.name):
                path.unlink()


if __name__ == "__main__":
    sys.exit(main())
