"""Reads the output of a kernel_support module from a process in which Triton compiles; in tests it interprets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parents[1]


def printed(module: str, *arguments: str, seconds: float) -> list[dict[str, Any]]:
    """Return the JSON objects, one a line, of `python -m MODULE ARGUMENTS`, whose warnings are errors.

    Raises AssertionError with the end of its output if it fails, TimeoutExpired after `seconds`.
    """
    path = os.pathsep.join([str(SUPPORT), *sys.path])
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-m", module, *arguments]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    assert answer.returncode == 0, answer.stderr[-4000:]
    return [json.loads(line) for line in answer.stdout.splitlines()]
