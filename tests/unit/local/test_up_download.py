"""Messages of `plimsoll up` while the runtime downloads from a hub."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from model_support.configs import LLAMA
from model_support.hub import Hub, serving

BYTES = 48 * 2**20
LINE = re.compile(
    r"model-0: loading: download (\d+)%, (\d+\.\d) of 50\.3 MB(?:, (\d+(?:\.\d)?) MB/s(?:, (\d+) s left)?)?"
)


@pytest.mark.long
def test_bytes_rate_and_time_left(tmp_path: Path, unused_tcp_port: int) -> None:
    """The hub sends 10 MiB per second. The files are not a valid model, which ends the run."""
    with serving(
        Hub(
            files={"config.json": json.dumps(LLAMA).encode(), "model.safetensors": b"no model" * (BYTES // 8)},
            pause=0.1,
        )
    ) as hub:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
        settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
        done = subprocess.run(
            [sys.executable, "-P", "-m", "plimsoll_runtime", "up", "hf://org/model", "--port", str(unused_tcp_port)],
            env={**inherited, **settings, "XDG_STATE_HOME": str(tmp_path), "PLIMSOLL_CACHE": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 4, done.stderr
    lines = [match for line in done.stderr.splitlines() if (match := LINE.fullmatch(line))]
    assert len(lines) >= 3, done.stderr
    assert all(len(match[0]) <= 80 for match in lines)
    percents = [int(match[1]) for match in lines]
    assert percents == sorted(percents), done.stderr
    with_rate = [match for match in lines if match[4] is not None]
    assert with_rate, done.stderr
    assert all(1 < float(match[3]) < 30 for match in with_rate)
    assert "a restart would not help" in done.stderr
