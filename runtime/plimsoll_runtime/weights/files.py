"""The files of one model, found: the border between where a model comes from and who reads it."""

from __future__ import annotations

from collections.abc import Mapping
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
"""In a config: what sentence-transformers keeps beside the model (see `modules.described_modules`)."""


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

        What the tokenizer adds to them: text.ends. Raises ModelError when they are no ids.
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
