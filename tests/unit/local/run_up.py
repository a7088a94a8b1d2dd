"""`plimsoll up` with fakes of `plimsoll serve` and `plimsoll host`; takes the arguments of the real command."""

from __future__ import annotations

import sys
from pathlib import Path

from plimsoll_runtime.cli import up
from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.errors import PlimsollError
from plimsoll_runtime.local import run

FAKE = (sys.executable, "-P", str(Path(__file__).with_name("fake_runtime.py")))
FAKE_HOST = (sys.executable, "-P", str(Path(__file__).with_name("fake_host.py")))


PATIENCE = 600.0
"""Longer than any test waits, so that a runtime that ignores SIGTERM must be killed."""


def main() -> int:
    run.RUNTIME_STOP_SECONDS = PATIENCE
    args = build_parser().parse_args(["up", *sys.argv[1:]])
    try:
        return up.run(args, serve=FAKE, host=FAKE_HOST)
    except PlimsollError as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        return error.kind.exit_code


if __name__ == "__main__":
    sys.exit(main())
