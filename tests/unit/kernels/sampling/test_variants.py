"""A batch of another size compiles nothing new."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[3] / "support"
LAUNCHES = 7
SLOWEST = 120

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(SLOWEST + 30),
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
]


def test_every_kernel_has_one_variant_for_batches_of_all_sizes() -> None:
    path = os.pathsep.join([str(SUPPORT), *sys.path])
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-m", "kernel_support.variants"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SLOWEST, check=False)
    assert answer.returncode == 0, answer.stderr[-4000:]
    for line in answer.stdout.splitlines():
        variants = json.loads(line)
        assert len(variants) == LAUNCHES
        assert set(variants.values()) == {1}, variants
