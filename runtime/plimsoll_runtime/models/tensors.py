"""The tensors of a program in a model's files, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.part import PartTensors
from plimsoll_runtime.weights.tensor_source import TensorSource, open_tensors
from plimsoll_runtime.weights.whole import whole

_NAMED = 5
"""How many tensors an error lists."""


def tensors_of(files: ModelFiles, program: Program, more: Mapping[str, tuple[int, ...]] | None = None) -> TensorSource:
    """The tensors of the files under the program's names, of which the headers are read; `more`: others with shapes.

    Raises ModelError for a file that is not what it says.
    """
    wanted = {**program.stored_shapes(), **(more or {})}
    source = open_tensors(files, wanted)
    if program.is_part:
        source = PartTensors(source, wanted)
    return whole(source, wanted)


class TensorsError(ModelError):
    """The files have other tensors than a program needs; `name` is the first of them."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


def check_tensors(program: Program, found: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse missing, unexpected and mis-shaped tensors by name, with a TensorsError.

    Buffers that are computed anyway are ignored, the copy of tied embeddings that some files carry, and layers beyond
    the last one.
    """
    expected = program.stored_shapes()
    unread = {n for n in found if n.endswith(program.ignored) or n.startswith(program.beyond)}
    unexpected = [n for n in found if n not in expected and n not in unread]
    wrong = {n: f"{n} {list(found[n])} instead of {list(s)}" for n, s in expected.items() if found.get(n, s) != s}
    missing = [n for n in expected if n not in found]
    for problem, names in (
        ("lack", missing),
        ("have unexpected tensors:", unexpected),
        ("have a wrong shape:", list(wrong)),
    ):
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            listed = ", ".join(wrong.get(name, name) for name in names[:_NAMED])
            message = f"{program.facts.architecture}: the weights {problem} {listed}{more}"
            raise TensorsError(message, names[0])
