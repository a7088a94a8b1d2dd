"""Where a model's tensors come from, whatever the format: names, shapes, and one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from plimsoll_runtime.weights.files import ModelFiles


class TensorSource(Protocol):
    """Tensors by the names that Transformers gives them."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor in the files, with its shape."""

    def read(self, name: str, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
        """One tensor on the CPU, converted. It is not to be written to: it may be the file itself, mapped.

        What is to be kept for good gets memory of its own: a view keeps its file mapped for as long as it lives, and
        where memory is short each look into it would read the disk again.
        """


def open_tensors(files: ModelFiles) -> TensorSource:
    """The tensors of a model's files. Raises ModelError when a file is cut short or not what it says."""
    if files.format == "gguf":
        from plimsoll_runtime.weights.gguf.tensors import GgufTensors

        return GgufTensors(files.weights[0], files.config)
    from plimsoll_runtime.weights.safetensors_files import SafetensorsFiles

    return SafetensorsFiles(files.weights)
