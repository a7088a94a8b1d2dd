"""The tensors of a model whose files begin no name with the part of the model that they are of.

Some checkpoints were saved from a model without its head, as those of GPT-2 and BLOOM on the hub are: what is
`transformer.h.0.ln_1.weight` in the whole model is `h.0.ln_1.weight` in theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from plimsoll_runtime.weights.stored_tensor import StoredTensor
from plimsoll_runtime.weights.tensor_source import TensorSource


def whole(source: TensorSource, wanted: Iterable[str]) -> TensorSource:
    """The source itself, or under the names that are wanted where it has all those of one part without its name."""
    names = list(wanted)
    for part in dict.fromkeys(name.partition(".")[0] for name in names):
        own = [name for name in names if name.startswith(f"{part}.")]
        if all(name not in source.shapes and name.removeprefix(f"{part}.") in source.shapes for name in own):
            return PrefixedTensors(source, f"{part}.", frozenset(names))
    return source


class PrefixedTensors:
    """All of a source's tensors with a prefix to their names, but for those that are `wanted` without it."""

    def __init__(self, source: TensorSource, prefix: str, wanted: frozenset[str]) -> None:
        self._source = source
        self._places = {name if name in wanted else prefix + name: name for name in source.shapes}
        self.shapes: Mapping[str, tuple[int, ...]] = {new: source.shapes[old] for new, old in self._places.items()}

    def stored(self, name: str) -> StoredTensor:
        """See TensorSource."""
        return self._source.stored(self._places[name])
