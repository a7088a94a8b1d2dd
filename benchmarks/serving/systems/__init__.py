"""The compared systems, including Plimsoll. They import their dependencies lazily, because each runs as a separate
process.
"""

from __future__ import annotations

import sys
from pathlib import Path

from peers import places
from serving import models
from serving.models import Shape
from serving.systems.base import Entry, System, ready
from serving.systems.openvino import OpenVinoGenAi
from serving.systems.transformers_static import TransformersStatic

US, US_HTTP = "plimsoll", "plimsoll-http"
OPENVINO, LLAMA_CPP, TRANSFORMERS = "openvino-genai", "llama.cpp", "transformers"


def _offline(shape: Shape, model: str, threads: int) -> System:
    from serving.systems.plimsoll import PlimsollOffline

    return PlimsollOffline(shape, model, threads)


def _server(shape: Shape, model: str, threads: int) -> System:
    from serving.systems.plimsoll import PlimsollServer

    return PlimsollServer(shape, model, threads)


def _llama_server(shape: Shape, model: str, threads: int) -> System:
    from serving.systems.llama_cpp import LlamaServer

    return LlamaServer(shape, model, threads)


def _bfloat16_gguf(shape: Shape) -> str:
    from peers import gguf_files

    if shape is models.DEMO:
        return str(gguf_files.in_bfloat16(models.demo_file(), places.cache() / "benchmarks"))
    return str(gguf_files.from_safetensors(models.folder(shape), "BF16"))


def _ours(shape: Shape) -> str:
    """Return Plimsoll's model: for a mixture, the same file that llama.cpp reads."""
    return _bfloat16_gguf(shape) if shape is models.MIXTURE else models.source(shape)


def _float16_gguf(shape: Shape) -> str:
    """Return the model as a float16 GGUF, because OpenVINO reads no bfloat16 GGUF; float16 represents all of these
    weights exactly.
    """
    from peers import gguf_files

    return str(gguf_files.from_safetensors(models.folder(shape), "F16"))


def _own_python() -> Path:
    return Path(sys.executable)


def _without_openvino() -> str | None:
    return None if places.has_openvino() else places.HINT


def _without_llama_cpp() -> str | None:
    return None if places.has_llama_cpp() else places.HINT


SYSTEMS = {
    US: Entry("Plimsoll", _offline, _ours, ready, _own_python),
    US_HTTP: Entry("Plimsoll over HTTP", _server, _ours, ready, _own_python),
    OPENVINO: Entry("OpenVINO GenAI", OpenVinoGenAi, _float16_gguf, _without_openvino, places.python),
    LLAMA_CPP: Entry("llama.cpp server", _llama_server, _bfloat16_gguf, _without_llama_cpp, _own_python),
    TRANSFORMERS: Entry("Transformers", TransformersStatic, models.source, ready, _own_python),
}
