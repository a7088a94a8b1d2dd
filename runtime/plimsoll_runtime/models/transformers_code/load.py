"""Loads weights into Transformers code with its own loader, and checks the result against the outline."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from plimsoll_kernels.cpu.places import Places
from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.tensors import deciding_fields, first_of, what_to_do
from plimsoll_runtime.models.transformers_code.attention_interface import NAME, register
from plimsoll_runtime.models.transformers_code.decoder import OwnCacheDecoder, TransformersDecoder
from plimsoll_runtime.models.transformers_code.model_classes import class_of
from plimsoll_runtime.models.transformers_code.outline import TransformersOutline
from plimsoll_runtime.models.transformers_code.skeleton import fill, put, skeleton, stored_tensors
from plimsoll_runtime.models.weight_reader import STAGE
from plimsoll_runtime.utils.progress import Progress
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.image_arena import hollow
from plimsoll_runtime.weights.safetensors import FLOATS, OTHERS, SafetensorsFiles

ForeignDecoder = TransformersDecoder | OwnCacheDecoder


def load(
    files: ModelFiles,
    outline: TransformersOutline,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
    places: Places | None = None,
) -> ForeignDecoder:
    """Load a model's weights; `places` stores them as plain tensors.

    Raises ModelError if a file is damaged, or a tensor is missing, unexpected or has the wrong shape.
    """
    progress(STAGE, 0.0)
    if files.format != "safetensors":
        raise ModelError(
            f"{files.name}: {outline.facts.architecture} runs on Transformers code, which supports only safetensors"
        )
    stored = SafetensorsFiles(files.weights, FLOATS | OTHERS)  # reads and checks all headers
    kind, config = class_of(files.config, outline.code)
    register()
    with _silent():
        model, found = kind.from_pretrained(
            files.root,
            config=config,
            dtype=dtype,
            attn_implementation=_attention(outline),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    _check(outline, found, stored.shapes)
    _check_kept(outline, model, dtype)
    if places is not None:
        put(model, lambda _, tensor: places.keep(tensor))
    elif device.type == "cpu":
        put(model, lambda _, tensor: _own(tensor))
    progress(STAGE, 1.0)
    return _decoder(outline, model, dtype, device)


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is not the mapped file: if memory is short, each access would read the disk again."""
    return tensor if tensor.untyped_storage().resizable() else tensor.clone()


def wake(outline: TransformersOutline, dtype: torch.dtype, device: torch.device, places: Places) -> ForeignDecoder:
    """Build the decoder of `load` from `places` that are filled already."""
    kind, config = class_of(outline.config, outline.code)
    model = skeleton(kind, config, dtype, attention=_attention(outline))
    dtypes = {tensor.name: tensor.dtype or dtype for tensor in outline.tensors}
    fill(model, lambda name, wanted: places.keep(hollow(wanted.shape, dtypes[name])))
    return _decoder(outline, model, dtype, device)


def _attention(outline: TransformersOutline) -> str | None:
    """Return the attention implementation for Transformers: ours, or its own choice (None) for a class with its own
    caches.
    """
    return NAME if outline.own is None else None


def _decoder(outline: TransformersOutline, model: Any, dtype: torch.dtype, device: torch.device) -> ForeignDecoder:
    kind = TransformersDecoder if outline.own is None else OwnCacheDecoder
    return kind(outline, model.to(device).eval().requires_grad_(False), dtype)


def _check_kept(outline: TransformersOutline, model: Any, dtype: torch.dtype) -> None:
    """Raise ModelError if the loaded model has other tensors than the outline lists."""
    kept = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in stored_tensors(model)]
    said = [(tensor.name, tensor.shape, tensor.dtype or dtype) for tensor in outline.tensors]
    if kept != said:
        counts = f"{len(kept)} tensors", f"{len(said)} tensors"
        odd = next((pair for pair in zip(kept, said, strict=False) if pair[0] != pair[1]), counts)
        raise ModelError(
            f"{outline.facts.architecture}: the loaded model has {odd[0]}, but its class defines {odd[1]} before "
            "loading"
        )


def _check(outline: TransformersOutline, found: dict[str, Any], stored: Collection[str]) -> None:
    shapes = {
        name: f"{name} {list(there)} instead of {list(wanted)}" for name, there, wanted in found["mismatched_keys"]
    }
    if errors := found.get("error_msgs", ()):
        raise ModelError(f"{outline.facts.architecture}: cannot read the weights: {first_of(sorted(errors))}")
    for problem, names in (
        ("lack", found["missing_keys"]),
        ("have unexpected tensors:", found["unexpected_keys"]),
        ("have a wrong shape:", shapes),
    ):
        if names:
            listed = first_of(sorted(shapes.get(name, name) for name in names))
            fields = deciding_fields(outline.config, min(names), stored, partial(_shapes_of, code=outline.code))
            raise ModelError(f"{outline.facts.architecture}: the weights {problem} {listed}; {what_to_do(fields)}")


def _shapes_of(config: Mapping[str, Any], code: Path | None) -> dict[str, tuple[int, ...]]:
    """Return the tensor shapes of a config's class, by name. Raises ModelError if the class rejects the config."""
    kind, theirs = class_of(config, code)
    try:
        model = skeleton(kind, theirs, torch.bfloat16, attention=None)
    except Exception as error:
        raise ModelError(f"config.json: {kind.__name__} rejects it: {error}") from error
    return {name: tuple(tensor.shape) for name, tensor in stored_tensors(model)}


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Disable Transformers' progress bars and tables; we report errors ourselves."""
    from transformers.utils import logging as theirs

    told: Any = theirs
    shown, level = told.is_progress_bar_enabled(), told.get_verbosity()
    told.disable_progress_bar()
    told.set_verbosity_error()
    try:
        yield
    finally:
        told.set_verbosity(level)
        if shown:
            told.enable_progress_bar()
