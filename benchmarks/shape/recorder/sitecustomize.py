"""Records which files of the project run in a process and its forks.

Python imports a module of this name at start if its folder is on the path. SHAPE_FOLDER gets the records: recording
restarts when a file `begin` appears there, and PID.json is written when a file `end` does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

FOLDER = Path(os.environ["SHAPE_FOLDER"])
INTERVAL = 0.05
_files: set[str] = set()


def _record(frame: FrameType, event: str, argument: object) -> None:
    if event == "call":
        _files.add(frame.f_code.co_filename)


def _watch() -> None:
    own = FOLDER / f"{os.getpid()}"
    _until(FOLDER / "begin")
    _files.clear()
    own.with_suffix(".begun").touch()
    _until(FOLDER / "end")
    written = own.with_suffix(".part")
    written.write_text(json.dumps(sorted(_files.copy())))
    written.rename(own.with_suffix(".json"))


def _until(file: Path) -> None:
    while not file.exists():
        time.sleep(INTERVAL)


def _start() -> None:
    threading.Thread(target=_watch, daemon=True).start()
    threading.setprofile(_record)
    sys.setprofile(_record)


os.register_at_fork(after_in_child=_start)
_start()
