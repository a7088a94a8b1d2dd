"""Where the peers live: a folder of their own under the user's cache, outside the project and its .venv."""

from __future__ import annotations

import os
from pathlib import Path

HINT = "not installed: make bench-peers"
PROGRAMS = ("llama-server", "llama-bench", "llama-quantize")


class NotInstalled(RuntimeError):
    """The peer is not on this machine."""

    def __init__(self, peer: str) -> None:
        super().__init__(f"{peer} is {HINT}")


def cache() -> Path:
    """The project's cache: models, peers. `PLIMSOLL_CACHE` moves it."""
    return Path(os.environ.get("PLIMSOLL_CACHE", Path.home() / ".cache" / "plimsoll"))


def home() -> Path:
    """The peers' folder; `PLIMSOLL_PEERS` moves it."""
    return Path(os.environ.get("PLIMSOLL_PEERS", cache() / "peers"))


def python() -> Path:
    """The interpreter of the peers' own virtual environment."""
    return home() / "venv" / "bin" / "python"


def program(name: str) -> Path:
    """A program built from llama.cpp, such as `llama-server`."""
    return home() / "bin" / name


def has_openvino() -> bool:
    """Whether the virtual environment holds OpenVINO GenAI."""
    return any((home() / "venv").glob("lib/python*/site-packages/openvino_genai"))


def has_llama_cpp() -> bool:
    """Whether llama.cpp's programs were built."""
    return all(program(name).is_file() for name in PROGRAMS)


def stamp() -> Path:
    """Says which llama.cpp was built."""
    return home() / "bin" / ".version"


def versions() -> dict[str, str]:
    """The peers that are installed; llama.cpp by the distribution whose sources it was built from."""
    found = {}
    for info in (home() / "venv").glob("lib/python*/site-packages/openvino_genai-*.dist-info"):
        found["openvino-genai"] = info.name.removeprefix("openvino_genai-").removesuffix(".dist-info")
    if has_llama_cpp() and stamp().is_file():
        found["llama-cpp-python (sources)"] = stamp().read_text().strip()
    return found
