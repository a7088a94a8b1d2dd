"""The files of a model, and the choice among several GGUF files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from plimsoll_runtime.errors import ModelError, SourceError

LARGEST_JSON = 2**26
"""Bytes of config.json and its like: an index of a thousand shards has a few million."""
LARGEST_TOKENIZER = 2**29
"""Bytes of tokenizer.json: that of 262,144 pieces has 33 million."""


INDEX = "model.safetensors.index.json"
"""Which file has which tensor, where a model has several."""
CONVERTED = "converted_by"
"""In a config: who changed how some tensors lie. Without it they lie as Transformers saves them."""
LLAMA_CPP = "llama.cpp"
YES_OR_NO = "classifier_from_token"
"""In a config, as vLLM has it: the tokens whose logits are a reranker's score, the one that says no first."""
PARTS = "sentence_transformers_files"
"""In a config: what sentence-transformers keeps beside the model (see `weights.sources.hub.described_modules`)."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on local disk, whatever its source was.

    `config` is what config.json says (translated from the metadata for GGUF: same keys, same meaning), so that
    model families read one vocabulary. `weights` are the tensor files in order. `chat_template` and `chat_stop`
    are set where the files carry no template that works (a base model of ours): a Jinja template and the strings
    that end a chat answer. `about`: what a person should know of the model before talking to it. `trusted`: whether
    code that lies beside the weights may run. `modules`: files of modules that follow the model, by the folders that
    these lie in.
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
        """Ids that end a generation, by the file that says so; none of a file that says nothing.

        What the tokenizer adds to them: text.special_tokens. Raises ModelError when they are no ids.
        """
        found = {}
        for file, config in (("generation_config.json", self.generation_config), ("config.json", self.config)):
            value = config.get("eos_token_id")
            ids = value if isinstance(value, list | tuple) else () if value is None else (value,)
            if not all(type(i) is int and i >= 0 for i in ids):
                raise ModelError(f"{self.name}: eos_token_id is {value!r}, and not a token id or a list of them")
            if ids:
                found[file] = tuple(ids)
        return found


def check_size(path: Path, most: int = LARGEST_JSON) -> None:
    """Raises ModelError for a file that is larger than any honest one; SourceError when it cannot be looked at."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    if size > most:
        raise ModelError(f"{path} has {size:,} bytes, and at most {most:,} are read of such a file; fetch it again")


def opened(path: Path) -> BinaryIO:
    """A model's file, open for reading. Raises SourceError when it cannot be opened."""
    try:
        return path.open("rb")
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}") from error


PREFERRED = ("Q4_K_M", "Q4_0", "Q8_0", "BF16", "F16")
"""Kinds that are taken where nobody says which, the first that there is."""
SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf\Z")
"""How the name of a file ends that is one of several."""
_NAMED = 12
"""How many files an error lists."""


def choose_gguf(source: str, files: Sequence[str], wanted: str | None) -> tuple[str, ...]:
    """The file, or all shards of it in order, by its name or by its kind (`Q4_K_M`), in any case.

    Raises SourceError where there is none, or more than one.
    """
    models = models_of(files)
    if wanted is None:
        found = next((fit for kind in PREFERRED if len(fit := _of_kind(models, kind)) == 1), list(models))
    elif wanted.endswith(".gguf"):
        found = [name for name in models if wanted in (name, *models[name])]
    else:
        found = _of_kind(models, wanted)
    if len(found) != 1:
        told = ", ".join(list(models)[:_NAMED]) + (" ..." if len(models) > _NAMED else "")
        what = "has no GGUF file of that name or kind" if not found else "has several GGUF files that may be meant"
        raise SourceError(f"{source} {what}: write hf://ORG/NAME:FILE with one of {told or 'none'}")
    return models[found[0]]


def shards_of(name: str) -> tuple[str, ...]:
    """All files of a model by the name of one of them, in order; that name where it is no shard."""
    if (found := SHARD.search(name)) is None:
        return (name,)
    stem, count = name[: found.start()], int(found[2])
    return tuple(f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1))


def models_of(files: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Each model's files by the name of its first."""
    firsts = [name for name in files if (found := SHARD.search(name)) is None or int(found[1]) == 1]
    return {name: shards_of(name) for name in firsts if not name.rsplit("/", 1)[-1].startswith("mmproj")}


def _of_kind(models: dict[str, tuple[str, ...]], kind: str) -> list[str]:
    """Those whose name has it as a word of its own."""
    word = re.compile(rf"(?:^|[-._/]){re.escape(kind)}(?:[-./]|$)", re.IGNORECASE)
    return [name for name in models if word.search(name)]
