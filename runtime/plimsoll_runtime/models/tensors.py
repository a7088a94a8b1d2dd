"""Finds a program's tensors in a model's files, checks them, and names the config fields behind a mismatch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import MAX_LAYERS
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.tensor_source import RenamedTensors, TensorSource, open_tensors

PLACES = ("{}", "language_model.{}", "model.language_model.{}", "language_model.model.{}")
"""Name patterns of text tensors in a multimodal model, with or without a leading "model."."""


def part_of(source: TensorSource, wanted: Iterable[str]) -> TensorSource:
    """Return a source of the wanted tensors only, which a multimodal model stores under one of the names in PLACES.

    The source has the wanted names.
    """
    places = {}
    for name in wanted:
        names = [form.format(each) for form in PLACES for each in (name, name.removeprefix("model."))]
        if (place := next((each for each in names if each in source.shapes), None)) is not None:
            places[name] = source, place
    return RenamedTensors(places)


def complete_source(source: TensorSource, wanted: Iterable[str]) -> TensorSource:
    """Return the source or, if the files store all wanted names of one prefix without it, one that adds the prefix.

    Some checkpoints were saved without a head, such as those of GPT-2 and BLOOM on the hub: they have `h.0.ln_1.weight`
    instead of `transformer.h.0.ln_1.weight`.
    """
    names = dict.fromkeys(wanted)
    for part in dict.fromkeys(name.partition(".")[0] for name in names):
        own = [name for name in names if name.startswith(f"{part}.")]
        if all(name not in source.shapes and name.removeprefix(f"{part}.") in source.shapes for name in own):
            return RenamedTensors(
                {each if each in names else f"{part}.{each}": (source, each) for each in source.shapes}
            )
    return source


_NAMED = 5
"""Number of tensors that an error lists."""


def tensors_of(files: ModelFiles, program: Program, more: Mapping[str, tuple[int, ...]] | None = None) -> TensorSource:
    """Open the files' tensors under the program's names, reading headers only. `more`: further tensors with shapes.

    Raises ModelError for a malformed file.
    """
    wanted = {**program.stored_shapes(), **(more or {})}
    source = open_tensors(files, wanted)
    if program.is_part:
        source = part_of(source, wanted)
    return complete_source(source, wanted)


class TensorsError(ModelError):
    """The files have other tensors than a program needs; `name` is the first of these."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


def check_tensors(program: Program, found: Mapping[str, tuple[int, ...]]) -> None:
    """Raise TensorsError for missing, unexpected and mis-shaped tensors.

    The files may have tensors that the program ignores: buffers that are computed, the copy of tied embeddings, layers
    for multi-token prediction.
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
            listed = first_of([wrong.get(name, name) for name in names])
            raise TensorsError(f"{program.facts.architecture}: the weights {problem} {listed}", names[0])


def first_of(names: Sequence[str], most: int = _NAMED) -> str:
    """Return at most `most` names for a message, with the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


Shapes = Mapping[str, tuple[int, ...]]
ShapesOf = Callable[[Mapping[str, Any]], Shapes]
"""Returns the tensors that a config describes. Raises ModelError if the config describes no model."""

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
"""Fields that add or remove tensors, and have a default."""
LAYERS = "num_hidden_layers"
_LAYERS_TRIED = (0, 1, 3, 7)
"""Layers to examine instead of a later one: mixtures and full attention start at one of them."""
_LAYER = re.compile(r"^\D*\.(\d+)\.")


def deciding_fields(
    config: Mapping[str, Any], name: str, found: Collection[str], shapes_of: ShapesOf
) -> dict[str, Any]:
    """Return the config fields that decide whether a tensor exists and its shape, with their values (None if not
    given).

    `found`: the names of the tensors in the files. The result is empty if no field is known to decide.
    """
    try:
        wanted = shapes_of(config)
        if by_layers := _by_layers(config, name, wanted, found):
            return by_layers
        for base, alike in _fewer_layers(config, name):
            if shapes_of(base).get(alike) == wanted.get(name) and (fields := _changing(base, alike, shapes_of)):
                return {field: config.get(field) for field in fields}
    except ModelError:
        pass  # the config, or one with fewer layers, is not a supported model: nothing is known about its fields
    return {}


def _changing(config: Mapping[str, Any], name: str, shapes_of: ShapesOf) -> list[str]:
    """Return the fields whose change adds, removes or reshapes a tensor."""
    before, found = shapes_of(config).get(name), []
    for field, value in _others(config, name):
        if field in found:
            continue
        try:
            asked = shapes_of({**config, field: value}).get(name)
        except ModelError:
            continue  # the combination with the other fields is not supported
        if asked != before:
            found.append(field)
    return found


def what_to_do(fields: Mapping[str, Any]) -> str:
    """Return the config.json fields that contradict a tensor, and advice, for an error message."""
    if not fields:
        return "config.json does not match the weights; download both from one revision"
    said = ", ".join(
        f"{field} {'is not given' if value is None else f'= {value!r}'}" for field, value in fields.items()
    )
    return (
        f"config.json sets which tensors exist and their shapes (here: {said}); correct it, or download config and "
        "weights from one revision"
    )


def _fewer_layers(config: Mapping[str, Any], name: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield configs with fewer layers, and the name of the same tensor in the last layer of each. Describing all 61
    layers of a model would take seconds.
    """
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
    """Yield boolean and integer fields, each with other values to try."""
    for field in dict.fromkeys((*SWITCHES, *(key for key, value in config.items() if type(value) is bool))):
        for value in (True, False):
            if config.get(field) is not value:
                yield field, value
    behind = [int(number) + 1 for number in re.findall(r"\.(\d+)\.", name)[1:]]  # numbers of experts
    for field, value in config.items():
        if type(value) is int and value > 0 and field != LAYERS and not field.endswith(("_id", "_ids")):
            yield from ((field, other) for other in (2 * value, value // 2, *behind))


def _by_layers(config: Mapping[str, Any], name: str, wanted: Shapes, found: Collection[str]) -> dict[str, Any]:
    """Return the field with the number of layers, and its value, if the files or the config lack the tensor's whole
    layer; else an empty dict.
    """
    layer = _layer_of(name)
    if layer is None or LAYERS not in config or layer > MAX_LAYERS:
        return {}
    prefix = name[: name.index(f".{layer}.") + len(f".{layer}.")]
    there = [any(each.startswith(prefix) for each in names) for names in (wanted, found)]
    return {} if all(there) else {LAYERS: config[LAYERS]}


def _layer_of(name: str) -> int | None:
    match = _LAYER.match(name)
    return None if match is None else int(match[1])
