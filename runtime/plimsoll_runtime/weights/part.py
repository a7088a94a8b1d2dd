"""The tensors of a part of a model, under the names that they have where the part is alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from plimsoll_runtime.weights.stored_tensor import StoredTensor
from plimsoll_runtime.weights.tensor_source import TensorSource

PLACES = ("{}", "language_model.{}", "model.language_model.{}", "language_model.model.{}")
"""Where a model that sees keeps a tensor of its text part, "model." before its name or not."""


class PartTensors:
    """Those that are `wanted`, wherever they are; of all others nothing is known."""

    def __init__(self, source: TensorSource, wanted: Iterable[str]) -> None:
        self._source = source
        self._places = {name: place for name in wanted if (place := _place(name, source.shapes)) is not None}
        self.shapes = {name: source.shapes[place] for name, place in self._places.items()}

    def stored(self, name: str) -> StoredTensor:
        """See TensorSource."""
        return self._source.stored(self._places[name])


def _place(name: str, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    names = (name, name.removeprefix("model."))
    return next((place for form in PLACES for each in names if (place := form.format(each)) in shapes), None)
