"""`python -m shape.run`: the size of the code, and the number of its files that a decode step and a streamed chat run
through.

The step is one of 4 sequences of "tiny" on the CPU kernels: the smallest number of files over 16 steps, and all files
of these steps, including those for a filled block. The chat is the second one of a server of the demo model, with 24
streamed tokens.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import plimsoll_kernels
import plimsoll_operator
import plimsoll_runtime
import question
from command import PLIMSOLL
from options import Options
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from serving import models
from serving.http_load import free_port
from shape import lines
from startup.ready import wait_ready
from tables import Sheet
from tiny_engine import start_decoding, tiny_engine

SEQUENCES, PROMPT, STEPS, TOKENS = 4, 256, 16, 24
LIMIT_SECONDS = 300
ROOTS = {
    "runtime": Path(plimsoll_runtime.__file__).parent,
    "kernels": Path(plimsoll_kernels.__file__).parent,
    "operator": Path(plimsoll_operator.__file__).parents[1],
}
"""The folder `operator` contains plimsoll_operator, plimsoll_gateway and plimsoll_cluster, which both import."""


def measure(chosen: Options) -> dict[str, Any]:
    """Return all measures, by name."""
    packages = {name: lines.measured(root) for name, root in ROOTS.items()}
    return {
        "packages": {name: asdict(each) for name, each in packages.items()},
        "code": sum(each.code for each in packages.values()),
        "step": _step(),
        "chat": _chat(),
    }


def table(result: dict[str, Any]) -> Sheet:
    """Return a row per measure."""
    rows = [
        [f"{name}: {figure}", str(value)] for name, each in result["packages"].items() for figure, value in each.items()
    ]
    rows.append(["code lines of all three", str(result["code"])])
    rows += [[f"files of a decode step, {name}", str(len(files))] for name, files in result["step"].items()]
    rows += [[f"files of a streamed chat, {name}", str(len(files))] for name, files in result["chat"].items()]
    return Sheet("The shape of the code", ["measure", "figure"], rows)


def _step() -> dict[str, list[str]]:
    engine, files = tiny_engine(SEQUENCES), set[str]()
    params = SamplingParams(temperature=0.0, max_tokens=2 * STEPS + 2, ignore_eos=True)
    start_decoding(engine, SEQUENCES, PROMPT, params, itertools.count())

    def record(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    steps = []
    for _ in range(STEPS):
        files.clear()
        sys.setprofile(record)
        engine.step()
        sys.setprofile(None)
        steps.append(_ours(files))
    return {"least": min(steps, key=len), "all": sorted(set().union(*steps))}


def _chat() -> dict[str, list[str]]:
    port = free_port()
    command = [*PLIMSOLL, "serve", models.DEMO_SOURCE, "--name", "demo", "--port", str(port), "--kv-memory", "256MiB"]
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile("w+") as log:
        folder = Path(name)
        recorder = str(Path(__file__).parent / "recorder")
        path = os.pathsep.join([recorder, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"SHAPE_FOLDER": name, "PYTHONPATH": path}
        with subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
            try:
                wait_ready(process, port, LIMIT_SECONDS)
                _ask(port)
                _signal(folder, "begin", ".begun")
                _ask(port)
                records = _signal(folder, "end", ".json")
            finally:
                process.terminate()
        files = {int(each.stem): _ours(set(json.loads(each.read_text()))) for each in records}
    server = files.pop(process.pid)
    return {"server": server, "engine": max(files.values(), key=len)}


def _ask(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_SECONDS)
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    if response.status != http.client.OK or not text.rstrip().endswith(b"[DONE]"):
        raise RuntimeError(f"no whole answer came, status {response.status}: {text[-300:]!r}")


def _signal(folder: Path, name: str, suffix: str) -> list[Path]:
    """Create a file that the recorders wait for. Return the files with `suffix` that the recorders of the server and
    its engine then write.
    """
    (folder / name).touch()
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        found = list(folder.glob(f"*{suffix}"))
        if len(found) == len(list(folder.glob("*.begun"))) > 1:
            return found
        time.sleep(0.2)
    raise TimeoutError(f"the recorders did not answer {name!r} within {LIMIT_SECONDS} s")


def _ours(files: set[str]) -> list[str]:
    return sorted(
        f"{name}/{Path(file).relative_to(root)}"
        for file in files
        for name, root in ROOTS.items()
        if Path(file).is_relative_to(root)
    )


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
