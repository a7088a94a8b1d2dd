"""From a model's files to a decoder: every tensor accounted for, read once, straight into its packed form."""

from __future__ import annotations

import torch

from plimsoll_runtime.models.decoder import Decoder, TorchDecoder
from plimsoll_runtime.models.fused import FusedDecoder
from plimsoll_runtime.models.names import check_tensors
from plimsoll_runtime.models.spec import DecoderSpec
from plimsoll_runtime.models.weights import Progress, WeightReader
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.tensors import open_tensors


def load_decoder(
    files: ModelFiles,
    spec: DecoderSpec,
    dtype: torch.dtype,
    *,
    device: torch.device,
    progress: Progress | None = None,
    fused: bool = False,
) -> Decoder:
    """Load a model's weights as its spec (`registry.describe`) says; `fused` for steps of the attention backend `cpu`.

    Raises ModelError when a tensor is missing, unexpected, of another shape, or cannot be read.
    """
    source = open_tensors(files)
    check_tensors(spec, source.shapes)
    reader = WeightReader(spec, source, dtype, device, progress or _silent)
    return FusedDecoder(reader) if fused else TorchDecoder(reader)


def _silent(stage: str, fraction: float) -> None:
    """Nobody asked to see progress."""
