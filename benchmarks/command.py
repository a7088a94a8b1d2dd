"""The `plimsoll` command for benchmarks: from the sources next to this file, whether installed or not."""

from __future__ import annotations

import sys

PLIMSOLL = (sys.executable, "-m", "plimsoll_runtime")
