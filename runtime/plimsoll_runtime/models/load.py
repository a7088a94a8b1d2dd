"""Builds decoders: loads them from files (checks all tensors, reads each once), or wakes them from a filled image.

Also computes the size of an image before loading.
"""

from __future__ import annotations

import torch

from plimsoll_kernels.cpu.places import OWN, Places
from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.cpu_executor.decoder import CpuExecutor
from plimsoll_runtime.models.decoder import Decoder, TorchDecoder
from plimsoll_runtime.models.layers.collectives import Collectives
from plimsoll_runtime.models.program import Outline, Program
from plimsoll_runtime.models.registry.registry import describe, text_part
from plimsoll_runtime.models.tensors import TensorsError, check_tensors, deciding_fields, tensors_of, what_to_do
from plimsoll_runtime.models.transformers_code import load as foreign
from plimsoll_runtime.models.transformers_code.outline import TransformersOutline
from plimsoll_runtime.models.weight_reader import ShapeReader, WeightReader
from plimsoll_runtime.utils.heap import give_back
from plimsoll_runtime.utils.progress import Progress, silent
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.image_arena import CountingArena, FilledArena, ShapesOnly, hollow
from plimsoll_runtime.weights.tensor_source import TensorSource

_HEADER_BYTES = 64 * 2**10
_PLACE_BYTES = 48
"""Upper bounds for the image header: facts without the config, and each tensor's entry."""


def load_decoder(
    files: ModelFiles,
    outline: Outline,
    dtype: torch.dtype,
    *,
    device: torch.device,
    progress: Progress | None = None,
    fused: bool = False,
    places: Places = OWN,
    collectives: Collectives | None = None,
) -> Decoder:
    """Load a model's weights into the decoder of its outline; `fused` selects the CPU executor.

    `collectives`: those of the group, if the outline is the program of one rank.

    Weights are stored in `places`: packed if `fused`, else as plain tensors. Raises ModelError if a tensor is missing,
    unexpected, has the wrong shape, or cannot be read.
    """
    told = progress or silent
    if isinstance(outline, TransformersOutline):
        return foreign.load(files, outline, dtype, device, told, None if places is OWN else places)
    return _load_program(files, _program(outline), dtype, device, told, places, collectives, fused=fused)


def checked_source(files: ModelFiles, program: Program) -> TensorSource:
    """Open the tensors of a program, reading headers only. Raises ModelError as `load_decoder` does."""
    source = tensors_of(files, program)
    try:
        check_tensors(program, source.shapes)
    except TensorsError as error:
        raise ModelError(f"{error}; {_what_config_says(files, program, error.name, source)}") from error
    return source


def _what_config_says(files: ModelFiles, program: Program, name: str, source: TensorSource) -> str:
    """Return the end of an error message about tensor `name`: the config fields that decide about it, with advice."""
    if files.format == "gguf":
        return "the file's metadata and tensors do not match: download it again"
    config = text_part(files.config) or files.config
    if program.facts.pooling is not None:
        config = {**config, "architectures": None}  # the class may lack a head
    fields = deciding_fields(config, name, source.shapes, lambda each: program_of(describe(each)).stored_shapes())
    return what_to_do(fields)


def _load_program(
    files: ModelFiles,
    program: Program,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
    places: Places,
    collectives: Collectives | None,
    *,
    fused: bool,
) -> Decoder:
    source = checked_source(files, program)
    if fused:
        return CpuExecutor(program, WeightReader(program, source, dtype, device, progress), places, collectives)
    through = None if places is OWN else places
    decoder = TorchDecoder(program, WeightReader(program, source, dtype, device, progress, through), collectives)
    give_back()
    return decoder


def wake_decoder(
    outline: Outline,
    dtype: torch.dtype,
    arena: FilledArena,
    *,
    device: torch.device,
    fused: bool,
    collectives: Collectives | None = None,
) -> Decoder:
    """Build the decoder of `load_decoder` from a filled image, without reading weights.

    The image has the packed weights of the CPU executor, but plain ones for torch: on a CPU the torch executor packs
    its matrices again. Raises ModelError if the image has other tensors than the program needs.
    """
    decoder: Decoder
    if isinstance(outline, TransformersOutline):
        decoder = foreign.wake(outline, dtype, device, arena)
    elif fused:
        program = _program(outline)
        decoder = CpuExecutor(program, ShapeReader(program, dtype), arena, collectives)
    else:
        program = _program(outline)
        shapes = ShapesOnly(program.stored_shapes())
        decoder = TorchDecoder(program, WeightReader(program, shapes, dtype, device, silent, arena), collectives)
    arena.finish()
    return decoder


def imagined_decoder(outline: Outline, dtype: torch.dtype) -> tuple[CpuExecutor, CountingArena]:
    """Return a CPU executor without weights, to compute the memory of its steps, and the arena that has counted the
    bytes of its image.
    """
    arena, program = CountingArena(), _program(outline)
    return CpuExecutor(program, ShapeReader(program, dtype), arena), arena


def image_bytes(outline: Outline, dtype: torch.dtype, *, fused: bool) -> int:
    """Return an estimate of an image's bytes, except those of the model's config in its header.

    It may be a few KiB too large, never too small.
    """
    if fused:
        _, arena = imagined_decoder(outline, dtype)
    else:
        arena = CountingArena()
        for shape, kept in outline.weight_shapes(dtype):
            arena.keep(hollow(shape, kept))
    return arena.end + _HEADER_BYTES + _PLACE_BYTES * arena.count


def _program(outline: Outline) -> Program:
    if not isinstance(outline, Program):
        raise TypeError(f"{outline.facts.architecture} has no program")
    return outline
