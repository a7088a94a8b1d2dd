"""What config.json and an index say of the files, against the tensors in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch

from plimsoll_runtime.weights.files import INDEX, ModelFiles
from plimsoll_runtime.weights.quantisation import quantisation_of
from plimsoll_runtime.weights.safetensors import FLOATS, OTHERS, QUANTISED, SafetensorsFiles
from plimsoll_runtime.weights.sources.resolve import MODELOPT, read_json

WHOLE = "model.safetensors"
_COPIES = "consolidated*"
"""The copy of the weights that Mistral's repositories have: no file of Transformers' form."""
_NAMED = 3
"""How many names a warning lists."""


def stored_warnings(files: ModelFiles) -> Iterator[str]:
    """Of dtypes, quantisation, the index, and files that are not read. Raises ModelError for damaged files."""
    tensors = SafetensorsFiles(files.weights, FLOATS | OTHERS | QUANTISED)
    quantised = quantisation_of(files.config)
    if quantised is None:
        yield from _dtype(files.config, tensors)
    elif not any(dtype in QUANTISED.values() for dtype in tensors.dtypes.values()):
        yield (
            f"config.json: quantization_config says {quantised.method}, and the tensors are stored as "
            f"{_called(_most(tensors))}: they are computed as they are stored"
        )
    yield from _modelopt(files)
    yield from _index(files.root, tensors)
    yield from _unread(files)


def _dtype(config: Mapping[str, Any], tensors: SafetensorsFiles) -> Iterator[str]:
    said = {field: str(config[field]).removeprefix("torch.") for field in ("dtype", "torch_dtype") if config.get(field)}
    if len(set(said.values())) > 1:
        yield f"config.json: dtype = {said['dtype']} and torch_dtype = {said['torch_dtype']}: dtype counts"
    stored = _most(tensors)
    for field, name in list(said.items())[:1]:
        if stored is not None and name != _called(stored):
            yield (
                f"config.json: {field} = {name}, and most tensors are stored as {_called(stored)}: the config counts; "
                f"--dtype {_called(stored)} computes in the files' dtype"
            )


def _most(tensors: SafetensorsFiles) -> torch.dtype | None:
    """The floating point dtype of most numbers in matrices: norms and routers are often stored in a wider one."""
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
        yield f"config.json: quant_algo = {first!r}, and {MODELOPT} says {second!r}: config.json counts"


def _index(root: Path, tensors: SafetensorsFiles) -> Iterator[str]:
    named = read_json(root / INDEX).get("weight_map")
    if not isinstance(named, Mapping):
        return
    lacking, more = sorted(named.keys() - tensors.shapes.keys()), sorted(tensors.shapes.keys() - named.keys())
    if lacking:
        yield f"{INDEX} names tensors that its files lack ({_listed(lacking)}): what is in the files counts"
    if more:
        yield f"{INDEX} lacks tensors that are in its files ({_listed(more)}): what is in the files counts"


def _unread(files: ModelFiles) -> Iterator[str]:
    read = {path.name for path in files.weights}
    others = [
        path.name for path in files.root.glob("*.safetensors") if path.name not in read and not path.match(_COPIES)
    ]
    if others:
        by = f"{INDEX} names others" if (files.root / INDEX).is_file() else f"{WHOLE} is there"
        yield f"{_listed(sorted(others))} {'is' if len(others) == 1 else 'are'} not read, because {by}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _called(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
