"""How a bench starts the `plimsoll` command: from the sources that it was itself found beside, installed or not."""

from __future__ import annotations

import sys

PLIMSOLL = (sys.executable, "-m", "plimsoll_runtime")
