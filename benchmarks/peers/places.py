"""Paths of the peers: a folder in the user's cache, outside the project and its .venv."""

from __future__ import annotations

import os
from pathlib import Path

HINT = "not installed: make bench-peers"
PROGRAMS = ("llama-server", "llama-bench", "llama-quantize")


class NotInstalled(RuntimeError):
    """The peer is not installed."""

    def __init__(self, peer: str) -> None:
        super().__init__(f"{peer} is {HINT}")


def cache() -> Path:
    """Return the project's cache for models and peers. `PLIMSOLL_CACHE` moves it."""
    return Path(os.environ.get("PLIMSOLL_CACHE", Path.home() / ".cache" / "plimsoll"))


def home() -> Path:
    """Return the peers' folder. `PLIMSOLL_PEERS` moves it."""
    return Path(os.environ.get("PLIMSOLL_PEERS", cache() / "peers"))


def python() -> Path:
    """Return the interpreter of the peers' virtual environment."""
    return home() / "venv" / "bin" / "python"


def program(name: str) -> Path:
    """Return a program built from llama.cpp, such as `llama-server`."""
    return home() / "bin" / name


def has_openvino() -> bool:
    """Return whether the virtual environment contains OpenVINO GenAI."""
    return any((home() / "venv").glob("lib/python*/site-packages/openvino_genai"))


def has_llama_cpp() -> bool:
    """Return whether llama.cpp's programs are built."""
    return all(program(name).is_file() for name in PROGRAMS)


def stamp() -> Path:
    """Return the file that records the built llama.cpp."""
    return home() / "bin" / ".version"


def versions() -> dict[str, str]:
    """Return the installed peers' versions; llama.cpp's is that of the distribution with its sources."""
    found = {}
    for info in (home() / "venv").glob("lib/python*/site-packages/openvino_genai-*.dist-info"):
        found["openvino-genai"] = info.name.removeprefix("openvino_genai-").removesuffix(".dist-info")
    if has_llama_cpp() and stamp().is_file():
        found["llama-cpp-python (sources)"] = stamp().read_text().strip()
    return found
