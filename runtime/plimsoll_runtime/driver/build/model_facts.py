"""The properties of a model that are known before its weights are read, from its files or from an image's header."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from plimsoll_kernels.cpu.compile import library_path
from plimsoll_kernels.cpu.library import InstructionsError, choose, kernels
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.errors import ModelError, UnsupportedFieldError, UsageError
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.attention.capabilities import Target
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.execution.attention.selection import backend_called, candidates, measured
from plimsoll_runtime.execution.attention.split import exclude_failed
from plimsoll_runtime.execution.device.select import NAMES, choose_dtype
from plimsoll_runtime.execution.kv.layout import KvLayout, kv_layout, uniform_layout
from plimsoll_runtime.execution.kv.states import snapshot_rows
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.compose.pooling import pooled_program, pooling_info, served_as
from plimsoll_runtime.models.cpu_executor.lowering import why_not_fused
from plimsoll_runtime.models.program import Outline, Program
from plimsoll_runtime.models.registry.tasks import TOLD, by_tokens, task_of
from plimsoll_runtime.models.transformers_code.outline import transformers_outline
from plimsoll_runtime.models.validation.config import check_impl, checked_task, generating_spec, in_transformers_code
from plimsoll_runtime.models.validation.contradictions import contradictions
from plimsoll_runtime.models.validation.tie_embeddings import own_head, untied
from plimsoll_runtime.parallel.rank import Chosen, Rank
from plimsoll_runtime.text.special_tokens import end_ids, score_tokens
from plimsoll_runtime.version import VERSION
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.image import FileStamp, ImageFacts
from plimsoll_runtime.weights.stored_tensor import dtype_name

logger = logging.getLogger(__name__)

Backends = Sequence[type[AttentionBackend]]
"""The backend to use, followed by its fallbacks in order."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model to build an engine for. `files` is None in a wake, which reads none. `eos_token_ids`: see
    text.special_tokens.

    `described`: the config.json of the outline, as an image stores it. `pooling`: results of a pooling model; None: it
    generates tokens. `snapshots`: number of state snapshots.
    """

    outline: Outline
    described: bytes
    pooling: PoolingInfo | None
    dtype: torch.dtype
    device: torch.device
    backends: Backends
    eos_token_ids: Sequence[int]
    files: ModelFiles | None
    snapshots: int

    @property
    def fused(self) -> bool:
        """Whether Plimsoll's CPU kernels compute whole steps."""
        return self.backends[0].fused

    def kv_layout(self, config: EngineConfig) -> KvLayout:
        """Return how the layers share the KV cache."""
        facts = self.outline.facts
        if facts.own:
            return uniform_layout(config.block_size, facts.token_bytes(self.dtype.itemsize))
        longest = config.max_model_len or facts.max_positions
        return kv_layout(facts.attention, longest, config.block_size, self.dtype.itemsize, facts.stages, facts.stage)

    @property
    def beside_image(self) -> int:
        """Bytes of weights that an engine keeps in addition to its image: torch's packed ones on a CPU, a copy on a
        GPU.
        """
        as_they_lie = self.fused or (self.device.type == "cpu" and not self.outline.repacks)
        return 0 if as_they_lie else self.outline.weight_bytes(self.dtype)


def outline_of(
    described: Mapping[str, Any],
    impl: str = "auto",
    max_model_len: int | None = None,
    *,
    gguf: bool = False,
    code: Path | None = None,
) -> Outline:
    """Return the outline of a config.json: a program if there is one for it, else Transformers code, or as `impl` says.

    If a program does not support a field, Transformers code is tried (not for `gguf` files, which it cannot read).
    `code`: folder of the model's own code, if it may run. Pooling models always need a program. Raises ModelError, with
    the reason, if neither can serve the model.
    """
    task = described.get(TOLD, "generate")
    if task != "generate":
        check_impl(task, impl)
        return pooled_program(described, task, max_model_len)
    if in_transformers_code(described, impl):
        return transformers_outline(described, code)
    try:
        return program_of(generating_spec(described), max_model_len)
    except UnsupportedFieldError as refusal:
        if impl == "native" or gguf:
            raise
        return _in_their_code(described, refusal)


def _in_their_code(described: Mapping[str, Any], refusal: UnsupportedFieldError) -> Outline:
    """Return an outline of Transformers code; if that fails too, raise the program's refusal with both reasons."""
    try:
        outline = transformers_outline(described)
    except ModelError as error:
        raise UnsupportedFieldError(f"{refusal}; Transformers code cannot serve it either: {error}") from error
    logger.warning(
        "%s in Plimsoll's own implementation; %s runs on Transformers code", refusal, outline.facts.architecture
    )
    return outline


def backends_of(config: EngineConfig, outline: Outline, device: torch.device, dtype: torch.dtype) -> Backends:
    """Return the attention backends of a model that is not loaded yet, in order of preference. Raises UsageError for an
    unusable choice.
    """
    return candidates(config.attention_backend, _target(config, outline, device, dtype))


def attention_seconds(config: EngineConfig, model: Model, backend: str) -> tuple[float, float] | None:
    """Return the measured seconds of a backend's prompt chunk and of its decodes; None if it was not measured."""
    timing = measured(backend, _target(config, model.outline, model.device, model.dtype))
    return None if timing is None else (timing.chunk_ms / 1e3, timing.decode_ms / 1e3)


def from_files(config: EngineConfig, files: ModelFiles, device: torch.device, rank: Rank | None = None) -> Model:
    """Return the model that files describe, or the part of a `rank`. Raises ModelError if it cannot be served,
    UsageError for unusable options.
    """
    settled = check_model(config, files, _with_task(config, files))
    files, told, outline = settled.files, settled.config, settled.outline
    outline = outline if rank is None else rank.part(outline)
    ours = _our_kernels_serve(config, outline, device)
    dtype = choose_dtype(config.dtype, files.config, device, quantised=files.format == "gguf", ours=ours)
    backends = backends_of(config, outline, device, dtype)
    described, pooling = json.dumps(told).encode(), _pooling(told, outline)
    snapshots = snapshot_rows(config, outline.facts)
    return Model(outline, described, pooling, dtype, device, backends, end_ids(files), files, snapshots)


def of_rank(config: EngineConfig, files: ModelFiles, device: torch.device, rank: Rank) -> Model:
    """Return a rank's part of a model. Rank 0 chooses dtype and attention backend, and there are no fallbacks, because
    all ranks must compute alike. It chooses no backend that has failed before, if there is another.

    Raises ModelError, UsageError.
    """
    first = None
    if rank.number > 0:
        first = rank.chosen(None)
        config = replace(config, dtype=first.dtype, attention_backend=first.attention_backend)
    model = from_files(config, files, device, rank)
    if first is None:
        model = replace(model, backends=_left(model.backends, rank.failed_backends))
        rank.chosen(_chosen(model))
    elif model.fused:
        _choose_kernels(model.dtype, first.instructions)
    rank.check(_chosen(model))
    return replace(model, backends=model.backends[:1])


def _left(backends: Backends, failed: Sequence[str]) -> Backends:
    """Return the backends without failed ones; all of them if none is left."""
    left = list(backends)
    for name in failed:
        left = exclude_failed(name, left)
    return left or backends


def _chosen(model: Model) -> Chosen:
    found = kernels(model.dtype) if model.fused else None
    instructions = torch.backends.cpu.get_cpu_capability() if found is None else found.name.decode()
    return Chosen(dtype_name(model.dtype), model.backends[0].name, instructions)


def _choose_kernels(dtype: torch.dtype, instructions: str) -> None:
    try:
        choose(dtype, instructions)
    except InstructionsError as error:
        raise UsageError(
            f"rank 0 computes with {instructions}: {error}; set PLIMSOLL_CPU_ISA on all machines to instructions that "
            "all of them have"
        ) from error


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model without contradictions. `config` is its config.json with the task that it is served for."""

    files: ModelFiles
    config: Mapping[str, Any]
    outline: Outline


def check_model(config: EngineConfig, files: ModelFiles, told: Mapping[str, Any]) -> CheckedModel:
    """Log each contradiction in a model's files, and settle it. `told`: the config.json with the task to serve.

    Raises ModelError if the model cannot be served or a contradiction not settled, UsageError for unusable options.
    """
    outline = _outlined(config, files, told)
    for warning in contradictions(files, told, outline):
        logger.warning("%s: %s", files.name, warning)
    own = own_head(files, outline)
    if own is None:
        return CheckedModel(files, told, outline)
    logger.warning("%s: %s", files.name, own.warning(files.config))
    files, told = replace(files, config=untied(files.config)), untied(told)
    outline = _outlined(config, files, told)
    if own_head(files, outline) is not None:
        raise ModelError(own.refusal(outline.facts.architecture))
    return CheckedModel(files, told, outline)


def _outlined(config: EngineConfig, files: ModelFiles, told: Mapping[str, Any]) -> Outline:
    code = files.root if files.trusted else None
    return outline_of(told, config.model_impl, config.max_model_len, gguf=files.format == "gguf", code=code)


def _with_task(config: EngineConfig, files: ModelFiles) -> Mapping[str, Any]:
    """Return the config of the files with the task that the model is served for. Raises ModelError, UsageError."""
    task = checked_task(files.config, config.task, gguf=files.format == "gguf")
    return served_as(files.config, task, score_tokens(files) if by_tokens(files.config, task) else ())


def _pooling(described: Mapping[str, Any], outline: Outline) -> PoolingInfo | None:
    task = described.get(TOLD)
    return pooling_info(described, task, outline) if task and isinstance(outline, Program) else None


def from_image(config: EngineConfig, facts: ImageFacts, device: torch.device, rank: Rank | None = None) -> Model:
    """Return the model of a filled image, or the part of a `rank`. Raises ModelError if the image has another model or
    part, or does not fit this machine.

    After this call, the process computes with the kernels that the weights are packed for.
    """
    for what, found, wanted in (
        ("model", (facts.model, facts.revision), (config.model, config.revision)),
        ("kind of device", facts.device, device.type),
        ("dtype", facts.dtype, facts.dtype if config.dtype == "auto" else config.dtype),
        ("version of plimsoll", facts.code, VERSION),
        ("rank", (facts.rank, facts.ranks), (0, 1) if rank is None else (rank.number, rank.layout.size)),
        ("config", hashlib.sha256(facts.config).hexdigest(), facts.config_digest),
    ):
        if found != wanted:
            raise _misfit(f"its {what} is {found}, but {wanted} is requested")
    _check_files(facts.files)
    described = json.loads(facts.config)
    loaded_for = described.get(TOLD, "generate")
    if (wanted := task_of(described, config.task)) != loaded_for and config.task != "auto":
        raise _misfit(f"its task is {loaded_for}, but {wanted} is requested")
    outline = outline_of(described, config.model_impl, config.max_model_len)
    outline = outline if rank is None else rank.part(outline)
    dtype = NAMES[facts.dtype]
    _use_kernels(facts, dtype)
    if rank is not None and rank.number > 0:
        config = replace(config, attention_backend=rank.chosen(None).attention_backend)
    backends = _backends(config, facts, _target(config, outline, device, dtype))
    snapshots, pooling = snapshot_rows(config, outline.facts), _pooling(described, outline)
    model = Model(outline, facts.config, pooling, dtype, device, backends, facts.eos_token_ids, None, snapshots)
    if rank is not None:
        if rank.number == 0:
            rank.chosen(_chosen(model))
        rank.check(_chosen(model))
    return model


def facts_of(config: EngineConfig, model: Model, files: ModelFiles, rank: Rank | None = None) -> ImageFacts:
    """Return the facts that an image stores about a model's weights."""
    found = kernels(model.dtype) if model.fused else None
    return ImageFacts(
        model=config.model,
        revision=config.revision,
        files=[_stamp(path) for path in files.weights],
        config=model.described,
        config_digest=hashlib.sha256(model.described).hexdigest(),
        dtype=dtype_name(model.dtype),
        device=model.device.type,
        instructions=None if found is None else found.name.decode(),
        library=None if found is None else library_path().name,
        backends=[backend.name for backend in model.backends],
        eos_token_ids=list(model.eos_token_ids),
        code=VERSION,
        rank=0 if rank is None else rank.number,
        ranks=1 if rank is None else rank.layout.size,
    )


def _target(config: EngineConfig, outline: Outline, device: torch.device, dtype: torch.dtype) -> Target:
    unfused = why_not_fused(outline) if isinstance(outline, Program) else "computes no model of Transformers code"
    facts = outline.facts
    return Target(device, dtype, facts.attention, config.block_size, unfused, facts.whole)


def _our_kernels_serve(config: EngineConfig, outline: Outline, device: torch.device) -> bool:
    """Whether the options permit the CPU kernels, and these can compute the model in bfloat16."""
    target = _target(config, outline, device, torch.bfloat16)
    return config.attention_backend in ("auto", "cpu") and BACKENDS["cpu"].capabilities.refusal(target) is None


def _check_files(stamps: Sequence[FileStamp]) -> None:
    """Raise ModelError if a file has changed. Missing files are accepted, because the weights are in the image."""
    for stamp in stamps:
        path = Path(stamp.path)
        if path.is_file() and _stamp(path) != stamp:
            raise _misfit(f"{path} has changed since the image was made")


def _stamp(path: Path) -> FileStamp:
    status = path.stat()
    return FileStamp(str(path.absolute()), status.st_size, status.st_mtime_ns)


def _use_kernels(facts: ImageFacts, dtype: torch.dtype) -> None:
    if facts.instructions is None:
        return
    if facts.library != library_path().name:
        raise _misfit(f"it is packed for the kernels of {facts.library}, but this process has {library_path().name}")
    try:
        choose(dtype, facts.instructions)
    except InstructionsError as error:
        raise _misfit(str(error)) from error


def _backends(config: EngineConfig, facts: ImageFacts, target: Target) -> Backends:
    """Return the backends that the image was made for, or another requested one that reads the same weights.

    Without a KV cache there is only one.
    """
    if config.attention_backend != "auto" or not target.shapes:
        backends = candidates(config.attention_backend, target)
        if backends[0].fused != (facts.instructions is not None):
            raise _misfit(f"it is for the attention backend {facts.backends[0]}, but {backends[0].name} is requested")
        return backends
    first = facts.backends[0]
    if reason := backend_called(first).capabilities.refusal(target):
        raise _misfit(f"the attention backend {first}, which it was made for, {reason}")
    return [backend_called(name) for name in facts.backends]


def _misfit(what: str) -> ModelError:
    return ModelError(f"the weight image cannot be used: {what}; drop it and load the model again")
