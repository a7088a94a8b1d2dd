"""The first stage of building an engine: load its model and decoder from files (and fill an empty image), or wake it
from a filled image.
"""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from plimsoll_kernels.cpu.places import OWN
from plimsoll_runtime.driver.build.model_facts import Model, facts_of, from_files, from_image, of_rank
from plimsoll_runtime.driver.build.model_files import find_files
from plimsoll_runtime.driver.process.handshake import Grant
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.execution.device.gpus import log_findings
from plimsoll_runtime.execution.kv.offload.host_memory import HostRegistry, pinned
from plimsoll_runtime.execution.memory.kv_budget import check_weights_fit, free_memory
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.layers.collectives import Collectives
from plimsoll_runtime.models.load import image_bytes, load_decoder, wake_decoder
from plimsoll_runtime.parallel.rank import Rank
from plimsoll_runtime.utils.progress import Progress
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.image import Image, ImageHeader
from plimsoll_runtime.weights.image_arena import FilledArena, FillingArena

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded model. `weight_bytes`: of device memory. `woken`: whether it came from an image.

    `findings`: messages about the device, empty if it was not inspected.
    """

    model: Model
    decoder: Decoder
    weight_bytes: int
    woken: bool
    findings: tuple[str, ...] = ()


def load_model(
    config: EngineConfig,
    device: torch.device,
    image: Image | None,
    grant: Grant | None,
    progress: Progress,
    rank: Rank | None = None,
) -> LoadedModel:
    """Read the weights, or take them from a filled image. Before reading, log problems of the GPUs.

    A `rank` of a parallel group reads its part.

    Raises SourceError, ModelError, MemoryLimitError, UsageError.
    """
    header = None if image is None else image.header()
    if image is not None and header is not None:
        model = from_image(config, header.facts, device, rank)
        _check_weights(model, _weights_of(model, image), grant)
        decoder = wake(model, image, header, collectives=None if rank is None else rank.collectives)
        return LoadedModel(model, decoder, _weights_of(model, image), woken=True)
    # Not in a wake, which a request waits for: while other engines hold GPU memory, nvidia-smi takes a second.
    found = () if config.device == "cpu" else log_findings()
    files = find_files(config, progress)
    model = from_files(config, files, device) if rank is None else of_rank(config, files, device, rank)
    if rank is not None and image is not None:
        image = _image_of_rank(model, image)
    _check_weights(model, _weights_of(model, image), grant, 1 if rank is None else rank.neighbours)
    decoder = _read(config, model, model.files or files, image, progress, rank)
    taken = decoder.weight_bytes if image is None else _weights_of(model, image)
    return LoadedModel(model, decoder, taken, woken=False, findings=found)


def _image_of_rank(model: Model, image: Image) -> Image | None:
    """Set the size of a rank's empty image. Return None if an image would take memory in addition to the decoder's."""
    if model.beside_image or model.device.type != "cpu":
        return None
    image.resize(image_bytes(model.outline, model.dtype, fused=model.fused) + len(model.described))
    return image


def wake(
    model: Model,
    image: Image,
    header: ImageHeader,
    registry: HostRegistry | None = None,
    collectives: Collectives | None = None,
) -> Decoder:
    """Take the weights from a filled image. For a GPU its pages are pinned during the copy, by `registry` (None: CUDA's
    own). `collectives`: those of a rank.

    Raises ModelError if the image does not have what the model needs.
    """
    began = time.perf_counter()
    arena = FilledArena(image, header)
    with _copied(arena, model.device, registry):
        decoder = wake_decoder(
            model.outline, model.dtype, arena, device=model.device, fused=model.fused, collectives=collectives
        )
    logger.info("woke from an image of %.2f GiB in %.3f s", header.nbytes / 2**30, time.perf_counter() - began)
    return decoder


def _read(
    config: EngineConfig,
    model: Model,
    files: ModelFiles,
    image: Image | None,
    progress: Progress,
    rank: Rank | None,
) -> Decoder:
    """Read the weights. With an image, store them in it, then seal it. Raises the errors of `load_decoder`."""
    arena = None if image is None else FillingArena(image)
    decoder = load_decoder(
        files,
        model.outline,
        model.dtype,
        device=model.device,
        progress=progress,
        fused=model.fused,
        places=OWN if arena is None else arena,
        collectives=None if rank is None else rank.collectives,
    )
    if arena is None:
        return decoder
    header = arena.finish(facts_of(config, model, files, rank))
    logger.info("%s: stored the weights in an image of %.2f GiB", config.model, header.nbytes / 2**30)
    return decoder


def _copied(arena: FilledArena, device: torch.device, registry: HostRegistry | None) -> AbstractContextManager[None]:
    if registry is None and device.type != "cuda":
        return nullcontext()
    return pinned(arena.memory, registry or torch.cuda.cudart())  # type: ignore[no-untyped-call]


def _weights_of(model: Model, image: Image | None) -> int:
    """Return the bytes of device memory that the weights take; before a load, an upper bound."""
    if image is None:
        return model.outline.weight_bytes(model.dtype)
    return model.beside_image + (image.size if model.device.type == "cpu" else 0)


def _check_weights(model: Model, weights: int, grant: Grant | None, neighbours: int = 1) -> None:
    """Raise MemoryLimitError if the weights do not fit into the grant, or into this rank's share of the free memory."""
    if grant is not None:
        grant.check_weights(weights)
    elif model.files is not None:
        check_weights_fit(weights, free_memory(model.device) // neighbours)
