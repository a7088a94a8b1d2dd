"""GGUF files give the log probabilities of llama.cpp's server, if that is installed."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind
from model_support.forward import of_decoder
from model_support.gguf_cases import CONVERTED, FAMILIES, HYBRIDS, MORE
from model_support.gguf_files import write_gguf
from model_support.tiny import make_model, prompts

from peers import places
from plimsoll_runtime.weights.sources.resolve import resolve

pytestmark = pytest.mark.skipif(
    not places.has_llama_cpp(), reason="llama.cpp is not installed: `make bench-peers` builds it"
)
NOT_TINY = ("gemma3n",)
"""llama.cpp has the layer counts and sizes of the two published models as constants."""
CASES = {name: case for name, case in {**FAMILIES, **MORE, **CONVERTED, **HYBRIDS}.items() if name not in NOT_TINY}
VOCAB = 300
TOLERANCE = 0.01
"""Its products are float32 like ours, apart from some rounding (measured: below 0.004)."""
ROUNDED = {"gemma4": 0.02}
"""Gates use a lookup table in half precision, twice a layer (measured: 0.013)."""
PROMPTS = prompts((20,), vocab=VOCAB, seed=3) + prompts((20,), vocab=VOCAB, seed=4)
STARTS_SECONDS = 60


@contextmanager
def server(path: Path) -> Iterator[str]:
    """Start a llama-server of one model. Return its address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    options = ["--port", str(port), "-c", "128", "-t", "2", "--no-warmup", "-ctk", "f32", "-ctv", "f32", "-fa", "off"]
    with subprocess.Popen(
        [places.program("llama-server"), "-m", path, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + STARTS_SECONDS
            while not _healthy(url):
                assert process.poll() is None, process.stdout.read().decode()[-2000:] if process.stdout else ""
                assert time.monotonic() < deadline, "llama-server does not answer"
                time.sleep(0.1)
            yield url
        finally:
            process.kill()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


def likeliest(url: str, prompt: Sequence[int]) -> dict[int, float]:
    """Return log probabilities of the next tokens; empty if the likeliest one ends the output."""
    asked = {"prompt": list(prompt), "n_predict": 1, "n_probs": 20, "temperature": 0, "cache_prompt": False}
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    if "completion_probabilities" not in found:
        return {}
    return {top["id"]: top["logprob"] for top in found["completion_probabilities"][0]["top_logprobs"]}


@pytest.mark.parametrize("name", CASES)
def test_its_log_probabilities(name: str, tmp_path: Path) -> None:
    case, path = CASES[name], tmp_path / "model.gguf"
    sizes: dict[str, int] = {"vocab_size": VOCAB}
    if "vocab_size_per_layer_input" in case.values:
        sizes["vocab_size_per_layer_input"] = VOCAB
    write_gguf(make_model(case.config, {**case.values, **sizes}), path, Kind.F32, spelt=True, **case.extra)
    ours = of_decoder(resolve(str(path)), PROMPTS, chunk=64)
    compared, tolerance = 0, ROUNDED.get(name, TOLERANCE)
    with server(path) as url:
        for prompt, expected in zip(PROMPTS, ours, strict=True):
            theirs = likeliest(url, prompt)
            compared += len(theirs)
            assert all(abs(value - float(expected[-1][token])) < tolerance for token, value in theirs.items())
    assert compared >= 20
