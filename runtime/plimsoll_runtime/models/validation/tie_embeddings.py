"""Checks `tie_word_embeddings` against a separate head in the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from plimsoll_runtime.models.program import Outline, Program
from plimsoll_runtime.models.tensors import tensors_of
from plimsoll_runtime.models.transformers_code.model_classes import class_of
from plimsoll_runtime.models.transformers_code.outline import TransformersOutline
from plimsoll_runtime.models.transformers_code.skeleton import skeleton
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.safetensors import FLOATS, OTHERS, SafetensorsFiles
from plimsoll_runtime.weights.tensor_source import TensorSource

TIED_FIELDS = ("tie_word_embeddings", "tie_embedding")
"""Config fields for tied embeddings; the second is LFM2's."""
_ROWS = 4096
"""Rows to compare at a time: 88 MB of a matrix with 5,376 columns."""


@dataclass(frozen=True, slots=True)
class OwnHead:
    """Tensor names of a separate head, and of the embedding that the config ties it to."""

    head: str
    embedding: str

    def warning(self, config: Mapping[str, Any]) -> str:
        """Return a warning with both statements and the one that is used."""
        said = {field: config[field] for field in TIED_FIELDS if field in config} or "by default"
        return (
            f"config.json ties embedding and head ({said}), but the files have a {self.head} that "
            f"differs from {self.embedding}: the head in the files is used; set tie_word_embeddings to false"
        )

    def refusal(self, architecture: str) -> str:
        """Return an error message for an architecture that cannot have a separate head."""
        return (
            f"{architecture} always ties embedding and head, but the files have a "
            f"{self.head} that differs from {self.embedding}: remove the wrong one from the files"
        )


def untied(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with untied embeddings."""
    return {**config, TIED_FIELDS[0]: False, **{field: False for field in TIED_FIELDS if field in config}}


def own_head(files: ModelFiles, outline: Outline) -> OwnHead | None:
    """Return the head in the files if the outline ties it to the embedding and their numbers differ.

    Raises ModelError for files that cannot be read.
    """
    if files.format == "gguf":
        return None  # the GGUF config is tied if the file has no head tensor
    if isinstance(outline, Program):
        return _of_program(files, outline)
    return _of_transformers(files, outline) if isinstance(outline, TransformersOutline) else None


def _of_program(files: ModelFiles, program: Program) -> OwnHead | None:
    if program.tied is None:
        return None
    head, embedding = program.tied
    source = tensors_of(files, program, {head: program.stored_shapes()[embedding]})
    return OwnHead(head, embedding) if _differ(source, head, embedding) else None


def _of_transformers(files: ModelFiles, outline: TransformersOutline) -> OwnHead | None:
    kind, config = class_of(outline.config, outline.code)
    model = skeleton(kind, config, torch.bfloat16, attention=None)
    try:
        inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    except NotImplementedError:  # raised by a class whose embedding is unknown: it ties nothing
        return None
    if outputs is None or inputs is None or outputs.weight is not inputs.weight:
        return None
    source = SafetensorsFiles(files.weights, FLOATS | OTHERS)
    shape, base = tuple(inputs.weight.shape), f"{model.base_model_prefix}."
    kept = {tensor.name for tensor in outline.tensors}
    kept |= {name.removeprefix(base) for name in kept}  # names in files that were saved without the head
    embedding = next(f"{name}.weight" for name, module in model.named_modules() if module is inputs)
    if embedding not in source.shapes:
        embedding = embedding.removeprefix(base)
    # Files may name the head differently than the class (GPT-NeoX): take the tensor of this shape that nothing else
    # reads.
    spare = [name for name, found in source.shapes.items() if found == shape and name not in kept]
    if len(spare) != 1 or not _differ(source, spare[0], embedding):
        return None
    return OwnHead(spare[0], embedding)


def _differ(source: TensorSource, head: str, embedding: str) -> bool:
    """Return whether both tensors exist with different shapes or numbers."""
    if head not in source.shapes or embedding not in source.shapes:
        return False
    first, second = source.stored(head), source.stored(embedding)
    if first.shape != second.shape:
        return True
    for start in range(0, first.shape[0], _ROWS):
        end = min(start + _ROWS, first.shape[0])
        numbers = [each.rows(start, end).converted(torch.float32) for each in (first, second)]
        if not torch.equal(*numbers):
            return True
    return False
