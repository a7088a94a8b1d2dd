"""The files of a model, and the choice of one GGUF file among several."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from plimsoll_runtime.errors import ModelError, SourceError

LARGEST_JSON = 2**26
"""Largest accepted size of config.json and similar files, in bytes. An index of a thousand shards takes a few million.
"""
LARGEST_TOKENIZER = 2**29
"""Largest accepted size of tokenizer.json, in bytes. The file of a vocabulary of 262,144 tokens takes 33 million."""


INDEX = "model.safetensors.index.json"
"""Name of the file that maps each tensor to its shard."""
CONVERTED = "converted_by"
"""Config key: the converter that reordered some tensors. Without it, tensors are laid out as Transformers saves them.
"""
LLAMA_CPP = "llama.cpp"
YES_OR_NO = "classifier_from_token"
"""Config key, as in vLLM: the two tokens whose logits give a reranker's score, "no" first."""
PARTS = "sentence_transformers_files"
"""Config key: the settings and modules of sentence-transformers (see `weights.sources.hub.described_modules`)."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files and config of a model on local disk, independent of its source.

    - `config` is config.json. For GGUF it is translated from the metadata to the same keys.
    - `weights` are the tensor files in order.
    - `chat_template` and `chat_stop` are a Jinja template and the strings that end a chat output. They are set only if
      the files have no usable template (our demo base model).
    - `about` is a note that a user should read before chatting with the model.
    - `trusted`: whether code next to the weights may run (--trust-remote-code).
    - `modules` are the weight files of sentence-transformers modules, by folder name.
    """

    name: str
    root: Path
    format: Literal["safetensors", "gguf"]
    config: Mapping[str, Any]
    weights: tuple[Path, ...]
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    chat_stop: tuple[str, ...] = ()
    about: str | None = None
    trusted: bool = False
    modules: Mapping[str, Path] = field(default_factory=dict)

    @property
    def stated_ends(self) -> Mapping[str, tuple[int, ...]]:
        """EOS token ids by the file that lists them, without files that list none.

        `text.special_tokens` adds the ids of the tokenizer. Raises ModelError if a value is not a token id or a list of
        them.
        """
        found = {}
        for file, config in (("generation_config.json", self.generation_config), ("config.json", self.config)):
            value = config.get("eos_token_id")
            ids = value if isinstance(value, list | tuple) else () if value is None else (value,)
            if not all(type(i) is int and i >= 0 for i in ids):
                raise ModelError(
                    f"{self.name}: eos_token_id is {value!r}; it must be a token id or a list of token ids"
                )
            if ids:
                found[file] = tuple(ids)
        return found


def check_size(path: Path, most: int = LARGEST_JSON) -> None:
    """Raise ModelError if a file is larger than `most` bytes, SourceError if it cannot be read."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    if size > most:
        raise ModelError(f"{path} has {size:,} bytes, more than the limit of {most:,} for this file; download it again")


def opened(path: Path) -> BinaryIO:
    """Open a model's file for reading. Raises SourceError if that fails."""
    try:
        return path.open("rb")
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}") from error


PREFERRED = ("Q4_K_M", "Q4_0", "Q8_0", "BF16", "F16")
"""GGUF types to choose if the user names none, in order of preference."""
SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf\Z")
"""Matches the end of a shard's file name."""
_NAMED = 12
"""Number of files that an error message lists."""


def choose_gguf(source: str, files: Sequence[str], wanted: str | None) -> tuple[str, ...]:
    """Return the GGUF file of a name or type (`Q4_K_M`, in any case), or all its shards in order.

    If `wanted` is None, take the first type of PREFERRED that exactly one file has, or the only file.

    Raises SourceError if no file or more than one file matches.
    """
    models = models_of(files)
    if wanted is None:
        found = next((fit for kind in PREFERRED if len(fit := _of_kind(models, kind)) == 1), list(models))
    elif wanted.endswith(".gguf"):
        found = [name for name in models if wanted in (name, *models[name])]
    else:
        found = _of_kind(models, wanted)
    if not models:
        raise SourceError(f"{source} has no GGUF file of a model")
    if len(found) != 1:
        told = ", ".join(list(models)[:_NAMED]) + (" ..." if len(models) > _NAMED else "")
        what = "has no GGUF file of that name or type" if not found else "has several matching GGUF files"
        raise SourceError(f"{source} {what}; use hf://ORG/NAME:FILE with one of {told}")
    return models[found[0]]


def shards_of(name: str) -> tuple[str, ...]:
    """Return the names of all shards of a model by the name of one, in order; `(name,)` if it is not a shard."""
    if (found := SHARD.search(name)) is None:
        return (name,)
    stem, count = name[: found.start()], int(found[2])
    return tuple(f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1))


def models_of(files: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the files of each model by the name of its first file, without projectors (mmproj)."""
    firsts = [name for name in files if (found := SHARD.search(name)) is None or int(found[1]) == 1]
    return {name: shards_of(name) for name in firsts if not name.rsplit("/", 1)[-1].startswith("mmproj")}


def _of_kind(models: dict[str, tuple[str, ...]], kind: str) -> list[str]:
    """Return the names that contain the type as a separate word."""
    word = re.compile(rf"(?:^|[-._/]){re.escape(kind)}(?:[-./]|$)", re.IGNORECASE)
    return [name for name in models if word.search(name)]
