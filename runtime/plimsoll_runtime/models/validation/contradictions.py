"""Checks for contradictions within a checkpoint: classes, lists of layers, rotary embeddings, tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import check_dictionaries, saved_class
from plimsoll_runtime.models.program import Outline, Program
from plimsoll_runtime.models.registry.registry import FAMILIES, MODEL_TYPES, describe, text_part
from plimsoll_runtime.models.registry.tasks import TOLD, is_encoder
from plimsoll_runtime.models.spec.decoder import DecoderSpec, attention_of
from plimsoll_runtime.models.tensors import first_of
from plimsoll_runtime.weights.files import INDEX, ModelFiles
from plimsoll_runtime.weights.quantisation import quantisation_of
from plimsoll_runtime.weights.safetensors import FLOATS, OTHERS, QUANTISED, SafetensorsFiles
from plimsoll_runtime.weights.sources.resolve import MODELOPT, read_json
from plimsoll_runtime.weights.stored_tensor import dtype_name


def check_classes(config: Mapping[str, Any], spec: DecoderSpec) -> None:
    """Raise ModelError if `architectures` and `model_type` name different families of ours with different specs.

    `spec` is that of `architectures`.
    """
    named, kind = saved_class(config), str(config.get("model_type"))
    other = MODEL_TYPES.get(kind)
    if named not in FAMILIES or other is None or other == named:
        return
    try:
        same = replace(describe({**config, "architectures": None}), architecture=spec.architecture) == spec
    except ModelError:
        same = False
    if not same:
        raise ModelError(
            f"config.json: architectures is {named}, but model_type is {kind} ({other}), a different model; "
            "correct the wrong one"
        )


TYPES = "layer_types"
RULES: Mapping[str, tuple[str, ...]] = {
    TYPES: (
        "sliding_window_pattern",
        "max_window_layers",
        "full_attention_interval",
        "full_attn_idxs",
        "attn_layer_indices",
        "layers_block_type",
    ),
    "no_rope_layers": ("no_rope_layer_interval",),
    "moe_layers": ("interleave_moe_layer_step",),
}
"""List fields with a value for each layer, and the fields that give such values by a rule. The list wins, as in
Transformers.
"""
_WINDOWS = ("use_sliding_window", "sliding_window", "max_window_layers", "sliding_window_pattern")
_SLIDING, _FULL = "sliding_attention", "full_attention"


def check_windows(config: Mapping[str, Any], spec: DecoderSpec) -> None:
    """Raise ModelError if `layer_types` and the other fields disagree about a layer's window."""
    types = config.get(TYPES)
    if not isinstance(types, list):
        return
    if len(types) != spec.num_layers:
        raise ModelError(
            f"config.json: {TYPES} has {len(types)} layers, but num_hidden_layers is {spec.num_layers}; correct the "
            "one that is wrong"
        )
    for index, (kind, layer) in enumerate(zip(types, spec.layers, strict=True)):
        attention = attention_of(layer.mixer)
        if attention is None or kind not in (_SLIDING, _FULL):
            continue
        window = attention.shape.window
        if (window is None) is (kind == _SLIDING):
            said = ", ".join(f"{field} = {config[field]!r}" for field in _WINDOWS if field in config)
            gives = "no window" if window is None else f"a window of {window}"
            raise ModelError(
                f"config.json: {TYPES} is {kind} for layer {index}, but {said or 'the default'} gives it {gives}; "
                "correct the one that is wrong"
            )


def list_warnings(config: Mapping[str, Any], spec: DecoderSpec) -> Iterator[str]:
    """Yield a warning for each list of RULES that gives other layers than the fields with its rule would."""
    for listed, fields in RULES.items():
        rules = {field: config[field] for field in fields if config.get(field) is not None}
        if not config.get(listed) or not rules:
            continue
        try:
            by_rule = describe({key: value for key, value in config.items() if key != listed})
        except ModelError:
            continue  # the rule alone does not describe a model, so it contradicts nothing
        if by_rule.layers != spec.layers:
            said = ", ".join(f"{field} = {value!r}" for field, value in rules.items())
            yield f"config.json: {listed} = {config[listed]!r} and {said} contradict each other: {listed} is used"


NEWER, OLDER = "rope_parameters", "rope_scaling"
_ORIGINAL = "original_max_position_embeddings"


def rope_warnings(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for each rope parameter that the config gives twice, with different values.

    Raises ModelError if rope_parameters and rope_scaling differ.
    """
    newer, older = config.get(NEWER), config.get(OLDER)
    if isinstance(newer, Mapping) and isinstance(older, Mapping):
        check_dictionaries(newer, older)
    field, found = (NEWER, newer) if newer else (OLDER, older)
    if not isinstance(found, Mapping):
        return
    by_type = {kind: each for kind, each in found.items() if isinstance(each, Mapping)}
    for kind, each in by_type.items():
        theta = "rope_local_base_freq" if kind == "sliding_attention" and "rope_local_base_freq" in config else None
        yield from _twice(config, each, f"{field}.{kind}", {theta or "rope_theta": "rope_theta"})
    if by_type:
        return
    yield from _twice(config, found, field, {name: name for name in ("rope_theta", "partial_rotary_factor")})
    kinds = [found.get("rope_type"), found.get("type")]
    if None not in kinds and kinds[0] != kinds[1]:
        yield f"config.json: {field} has rope_type = {kinds[0]!r} and type = {kinds[1]!r}: rope_type is used"
    lengths = config.get(_ORIGINAL), found.get(_ORIGINAL)
    if None not in lengths and lengths[0] != lengths[1]:
        yield f"config.json: {_ORIGINAL} = {lengths[0]!r}, but in {field} it is {lengths[1]!r}: the first is used"


def _twice(config: Mapping[str, Any], found: Mapping[str, Any], place: str, fields: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each parameter in `place` that a field of the config contradicts."""
    for outer, inner in fields.items():
        said = config.get(outer), found.get(inner)
        if None not in said and said[0] != said[1]:
            yield f"config.json: {outer} = {said[0]!r}, but {inner} in {place} is {said[1]!r}: the latter is used"


WHOLE = "model.safetensors"
_COPIES = "consolidated*"
"""Second copy of the weights in Mistral's repositories, which is not in Transformers' format."""
_NAMED = 3
"""Number of names that a warning lists."""


def stored_warnings(files: ModelFiles) -> Iterator[str]:
    """Yield warnings about dtypes, quantisation, the index, and unread files. Raises ModelError for damaged files."""
    tensors = SafetensorsFiles(files.weights, FLOATS | OTHERS | QUANTISED)
    quantised = quantisation_of(files.config)
    if quantised is None:
        yield from _dtype(files.config, tensors)
    elif not any(dtype in QUANTISED.values() for dtype in tensors.dtypes.values()):
        stored = _most(tensors)
        yield (
            f"config.json: quantization_config says {quantised.method}, but the tensors are stored as "
            f"{stored and dtype_name(stored)}: the stored dtype is used"
        )
    yield from _modelopt(files)
    yield from _index(files.root, tensors)
    yield from _unread(files)


def _dtype(config: Mapping[str, Any], tensors: SafetensorsFiles) -> Iterator[str]:
    said = {field: str(config[field]).removeprefix("torch.") for field in ("dtype", "torch_dtype") if config.get(field)}
    if len(set(said.values())) > 1:
        yield f"config.json: dtype = {said['dtype']} and torch_dtype = {said['torch_dtype']}: dtype is used"
    most = _most(tensors)
    stored = most and dtype_name(most)
    for field, name in list(said.items())[:1]:
        if stored is not None and name != stored:
            yield (
                f"config.json: {field} = {name}, but most tensors are stored as {stored}: the config is used; "
                f"--dtype {stored} computes in the files' dtype"
            )


def _most(tensors: SafetensorsFiles) -> torch.dtype | None:
    """Return the floating point dtype of most numbers in matrices. (Norms and routers often have a wider one.)"""
    counts: Counter[torch.dtype] = Counter()
    for name, dtype in tensors.dtypes.items():
        if dtype in FLOATS.values() and len(tensors.shapes[name]) > 1:
            counts[dtype] += prod(tensors.shapes[name])
    return counts.most_common(1)[0][0] if counts else None


def _modelopt(files: ModelFiles) -> Iterator[str]:
    said, other = files.config.get("quantization_config"), read_json(files.root / MODELOPT).get("quantization")
    if not isinstance(said, Mapping) or not isinstance(other, Mapping):
        return
    first, second = said.get("quant_algo"), other.get("quant_algo")
    if None not in (first, second) and first != second:
        yield f"config.json: quant_algo = {first!r}, but {MODELOPT} says {second!r}: config.json is used"


def _index(root: Path, tensors: SafetensorsFiles) -> Iterator[str]:
    named = read_json(root / INDEX).get("weight_map")
    if not isinstance(named, Mapping):
        return
    lacking, more = sorted(named.keys() - tensors.shapes.keys()), sorted(tensors.shapes.keys() - named.keys())
    if lacking:
        yield f"{INDEX} names tensors that its files lack ({first_of(lacking, _NAMED)}): the files are used"
    if more:
        yield f"{INDEX} lacks tensors that are in its files ({first_of(more, _NAMED)}): the files are used"


def _unread(files: ModelFiles) -> Iterator[str]:
    read = {path.name for path in files.weights}
    others = [
        path.name for path in files.root.glob("*.safetensors") if path.name not in read and not path.match(_COPIES)
    ]
    if others:
        by = f"{INDEX} names other files" if (files.root / INDEX).is_file() else f"{WHOLE} exists"
        yield f"{first_of(sorted(others), _NAMED)} {'is' if len(others) == 1 else 'are'} not read, because {by}"


_TIE = "tie_word_embeddings"


def contradictions(files: ModelFiles, config: Mapping[str, Any], outline: Outline) -> Iterator[str]:
    """Yield a warning with both statements for each contradiction that has a default resolution.

    `config` includes the task that the model is served for. Raises ModelError for a contradiction without a resolution.
    A GGUF file has none: its metadata are the only statement.
    """
    if files.format == "gguf":
        return
    part = text_part(config)
    values = config if part is None else part
    if part is not None:
        yield from _tie(config)
    yield from rope_warnings(values)
    if isinstance(outline, Program) and not is_encoder(config):
        if config.get(TOLD, "generate") != "generate":
            values = {**values, "architectures": None}  # the class may lack a head
        spec = describe(values)
        check_classes(values, spec)
        check_windows(values, spec)
        yield from list_warnings(values, spec)
    yield from stored_warnings(files)


def _tie(config: Mapping[str, Any]) -> Iterator[str]:
    text = config.get("text_config")
    said = config.get(_TIE), text.get(_TIE) if isinstance(text, Mapping) else None
    if None not in said and said[0] != said[1]:
        yield f"config.json: {_TIE} = {said[0]!r}, but in text_config it is {said[1]!r}: the first is used"
