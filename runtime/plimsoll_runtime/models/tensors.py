"""The tensors of a program in a model's files: names, checks, and the config fields that decide about a tensor that
does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import MAX_LAYERS
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.stored_tensor import StoredTensor
from plimsoll_runtime.weights.tensor_source import TensorSource, open_tensors

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


def complete_source(source: TensorSource, wanted: Iterable[str]) -> TensorSource:
    """The source itself, or under the names that are wanted where it has all those of one part without its name.

    Some checkpoints were saved from a model without its head, as those of GPT-2 and BLOOM on the hub:
    `transformer.h.0.ln_1.weight` of the whole model is `h.0.ln_1.weight` in them.
    """
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
    return complete_source(source, wanted)


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


Shapes = Mapping[str, tuple[int, ...]]
ShapesOf = Callable[[Mapping[str, Any]], Shapes]
"""The tensors that a config asks for. Raises ModelError for a config that describes no model."""

SWITCHES = (
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "use_bias",
    "bias",
    "qkv_bias",
    "use_qkv_bias",
    "lm_head_bias",
    "attention_out_bias",
    "enable_bias",
    "use_qk_norm",
)
"""Fields that add or remove tensors, and mean something if they are missing."""
LAYERS = "num_hidden_layers"
_LAYERS_TRIED = (0, 1, 3, 7)
"""Numbers of layers to look at in place of a later one: mixtures and full attention begin with one of them."""
_LAYER = re.compile(r"^\D*\.(\d+)\.")


def deciding_fields(
    config: Mapping[str, Any], name: str, found: Collection[str], shapes_of: ShapesOf
) -> dict[str, Any]:
    """The fields that decide about a tensor of this name, with what the config says, None if nothing.

    `found`: the names of the tensors in the files.
    """
    try:
        wanted = shapes_of(config)
        if by_layers := _by_layers(config, name, wanted, found):
            return by_layers
        for base, alike in _fewer_layers(config, name):
            if shapes_of(base).get(alike) == wanted.get(name) and (fields := _changing(base, alike, shapes_of)):
                return {field: config.get(field) for field in fields}
    except ModelError:
        pass  # a config that describes no model of ours, or not with fewer layers: nothing is known of its fields
    return {}


def _changing(config: Mapping[str, Any], name: str, shapes_of: ShapesOf) -> list[str]:
    """The fields with another value of which a tensor is another one, or is not asked for, or is only then."""
    before, found = shapes_of(config).get(name), []
    for field, value in _others(config, name):
        if field in found:
            continue
        try:
            asked = shapes_of({**config, field: value}).get(name)
        except ModelError:
            continue  # no model has this value next to the others
        if asked != before:
            found.append(field)
    return found


def what_to_do(fields: Mapping[str, Any]) -> str:
    """What config.json says by these fields, and what to do about a tensor that does not go with it."""
    if not fields:
        return "config.json does not go with them: take config and weights from one revision"
    said = ", ".join(
        f"{field} {'is not given' if value is None else f'= {value!r}'}" for field, value in fields.items()
    )
    return f"config.json decides this, where {said}: correct it, or take config and weights from one revision"


def _fewer_layers(config: Mapping[str, Any], name: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Configs of few layers, each with the name that the tensor has in the last of them: 61 layers take seconds."""
    layer, layers = _layer_of(name), config.get(LAYERS)
    if type(layers) is not int:
        yield config, name
        return
    lists = [key for key, value in config.items() if isinstance(value, list) and len(value) == layers]
    for few in _LAYERS_TRIED:
        if few < layers and (layer is None or few <= layer):
            fewer = {key: value for key, value in config.items() if key not in lists} | {LAYERS: few + 1}
            yield fewer, name if layer is None else name.replace(f".{layer}.", f".{few}.", 1)


def _others(config: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """Other values of fields: of switches, and of numbers."""
    for field in dict.fromkeys((*SWITCHES, *(key for key, value in config.items() if type(value) is bool))):
        for value in (True, False):
            if config.get(field) is not value:
                yield field, value
    behind = [int(number) + 1 for number in re.findall(r"\.(\d+)\.", name)[1:]]  # of experts
    for field, value in config.items():
        if type(value) is int and value > 0 and field != LAYERS and not field.endswith(("_id", "_ids")):
            yield from ((field, other) for other in (2 * value, value // 2, *behind))


def _by_layers(config: Mapping[str, Any], name: str, wanted: Shapes, found: Collection[str]) -> dict[str, Any]:
    """The number of layers, if the files or the config lack the whole layer."""
    layer = _layer_of(name)
    if layer is None or LAYERS not in config or layer > MAX_LAYERS:
        return {}
    prefix = name[: name.index(f".{layer}.") + len(f".{layer}.")]
    there = [any(each.startswith(prefix) for each in names) for names in (wanted, found)]
    return {} if all(there) else {LAYERS: config[LAYERS]}


def _layer_of(name: str) -> int | None:
    match = _LAYER.match(name)
    return None if match is None else int(match[1])
