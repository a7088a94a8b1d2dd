"""The tensors of a model in any format: names, shapes, and one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.stored_tensor import StoredTensor


class TensorSource(Protocol):
    """Tensors by their names in Transformers."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor in the files, by name."""

    def stored(self, name: str) -> StoredTensor:
        """Return a tensor in its file's encoding. Raises ModelError if it cannot be read."""


def open_tensors(files: ModelFiles, wanted: Mapping[str, tuple[int, ...]]) -> TensorSource:
    """Open the tensors of a model's files. `wanted` has Transformers' names and shapes of the tensors to load. Tensors
    of sentence-transformers modules have their folder as a prefix.

    Raises ModelError if a file is truncated or malformed.
    """
    if files.format == "gguf":
        from plimsoll_runtime.weights.gguf.tensors import GgufTensors

        return GgufTensors(files.weights, files.config, wanted)
    from plimsoll_runtime.weights.quantisation import quantisation_of
    from plimsoll_runtime.weights.quantisation_tensors import QuantisedTensors
    from plimsoll_runtime.weights.safetensors import FLOATS, QUANTISED, SafetensorsFiles

    found: TensorSource
    if (quantisation := quantisation_of(files.config)) is not None:
        found = QuantisedTensors(SafetensorsFiles(files.weights, FLOATS | QUANTISED), quantisation)
    else:
        found = SafetensorsFiles(files.weights)
    places: dict[str, tuple[TensorSource, str]] = {name: (found, name) for name in found.shapes}
    for folder, file in files.modules.items():
        module = SafetensorsFiles([file])
        places |= {f"{folder}.{name}": (module, name) for name in module.shapes}
    return RenamedTensors(places) if files.modules else found


class RenamedTensors:
    """Tensors of other sources under new names. `places` maps a new name to the source and the tensor's name there."""

    def __init__(self, places: Mapping[str, tuple[TensorSource, str]]) -> None:
        self._places = places
        self.shapes: Mapping[str, tuple[int, ...]] = {new: source.shapes[old] for new, (source, old) in places.items()}

    def stored(self, name: str) -> StoredTensor:
        source, old = self._places[name]
        return source.stored(old)
