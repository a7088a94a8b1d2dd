"""Gets a model's decoder: from its files, by way of an empty image if there is one, or from an image that is filled."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext

import torch

from plimsoll_runtime.driver.model import Model, facts_of
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.execution.tiers.pinned import HostRegistry, pinned
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.load import load_decoder, wake_decoder
from plimsoll_runtime.models.weights import Progress
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.image.arena import FilledArena, FillingArena
from plimsoll_runtime.weights.image.header import ImageHeader
from plimsoll_runtime.weights.image.image import Image

logger = logging.getLogger(__name__)


def load(config: EngineConfig, model: Model, files: ModelFiles, image: Image | None, progress: Progress) -> Decoder:
    """Read the weights; with an image they lie there, and it is sealed once they do. Raises as `load_decoder` does."""
    device, fused = model.device, model.fused
    if image is None:
        return load_decoder(files, model.outline, model.dtype, device=device, progress=progress, fused=fused)
    arena = FillingArena(image)
    decoder = load_decoder(
        files, model.outline, model.dtype, device=device, progress=progress, fused=fused, places=arena
    )
    header = arena.finish(facts_of(config, model, files))
    logger.info("%s: its weights lie in an image of %.2f GiB", config.model, header.nbytes / 2**30)
    return decoder


def wake(model: Model, image: Image, header: ImageHeader, registry: HostRegistry | None = None) -> Decoder:
    """Take the weights from a filled image, whose pages are pinned while a GPU copies them (by CUDA's own `registry`).

    Raises ModelError where it does not hold what the model needs.
    """
    began = time.perf_counter()
    arena = FilledArena(image, header)
    with _copied(arena, model.device, registry):
        decoder = wake_decoder(model.outline, model.dtype, arena, device=model.device, fused=model.fused)
    logger.info("woken from an image of %.2f GiB in %.3f s", header.nbytes / 2**30, time.perf_counter() - began)
    return decoder


def _copied(arena: FilledArena, device: torch.device, registry: HostRegistry | None) -> AbstractContextManager[None]:
    if registry is None and device.type != "cuda":
        return nullcontext()
    return pinned(arena.memory, registry or torch.cuda.cudart())  # type: ignore[no-untyped-call]
