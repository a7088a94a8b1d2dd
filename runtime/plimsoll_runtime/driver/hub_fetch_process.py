"""The process that fetches one snapshot of a hub for `hub_fetch`.

Started as `python -m plimsoll_runtime.driver.hub_fetch_process`. It ends when its standard input does: the fetch was
cancelled, or its parent has ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from pathlib import Path

import msgspec

from plimsoll_runtime.driver.hub_fetch import Answer, Fetched, FetchRequest
from plimsoll_runtime.engine.protocol.messages import ProcessFailed
from plimsoll_runtime.errors import SourceError
from plimsoll_runtime.weights.sources.hub import fetch_snapshot

STDIN, STDOUT, STDERR = 0, 1, 2
DESCRIPTORS = Path("/proc/self/fd")
USELESS = re.compile(r"\.[0-9a-f]{8}\.incomplete\Z")
"""The end of temporary file names of the hub's library that no later fetch continues, because each fetch uses its own.
Older versions continue a file named `.incomplete`."""


def main() -> int:
    """Fetch the snapshot that the line on standard input requests, and write the answer to standard output. Return the
    exit code.
    """
    answers = os.fdopen(os.dup(STDOUT), "wb")
    os.dup2(STDERR, STDOUT)  # libraries may print; that must not mix with the answer
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
        return ProcessFailed(error.kind.value, str(error))


def _end_with_input() -> None:
    while os.read(STDIN, 1):
        pass
    remove_useless()
    os._exit(1)


def remove_useless() -> None:
    """Remove this process's temporary files that no other fetch can continue."""
    for descriptor in DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):  # closed since, or moved to its final name
            path = descriptor.readlink()
            if USELESS.search(path.name):
                path.unlink()


if __name__ == "__main__":
    sys.exit(main())
