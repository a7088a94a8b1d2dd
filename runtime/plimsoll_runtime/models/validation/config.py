"""What a config alone shows of a model that cannot be served: checked before anything loads torch, or any weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.engine.limits import check_length
from plimsoll_runtime.engine.protocol.pooling import Task
from plimsoll_runtime.errors import ModelError, UnsupportedFieldError, UsageError
from plimsoll_runtime.models.registry.registry import describe, has_program
from plimsoll_runtime.models.registry.tasks import pooled_spec, task_of
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.transformers_code.model_classes import check_known, own_code


def check_config(
    config: Mapping[str, Any],
    *,
    task: str = "auto",
    impl: str = "auto",
    max_model_len: int | None = None,
    gguf: bool = False,
    trusted: bool = False,
) -> None:
    """Raises ModelError or UsageError as loading the model would, for all that can be seen without torch.

    `task`, `impl` and `max_model_len`: as EngineConfig has them. `trusted`: whether the model's own code may run.
    """
    found = checked_task(config, task, gguf=gguf)
    if found != "generate":
        check_impl(found, impl)
        check_length(max_model_len, pooled_spec(config).max_positions)
    elif in_transformers_code(config, impl):
        check_known(config, trusted=trusted)
    else:
        try:
            spec = generating_spec(config)
        except UnsupportedFieldError:
            if impl == "native" or gguf:
                raise
            return  # Transformers' own code may serve it: only asking that tells
        check_length(max_model_len, spec.max_positions)


def checked_task(config: Mapping[str, Any], asked: str, *, gguf: bool) -> Task:
    """The task that a model is served for. Raises ModelError, UsageError."""
    task = task_of(config, asked)
    if task != "generate" and gguf:
        raise ModelError(f"GGUF files are served to generate, and not for the task {task}: use safetensors")
    return task


def check_impl(task: str, impl: str) -> None:
    """Raises UsageError if --model-impl asks for Transformers' code, and the task is not to generate."""
    if impl == "transformers":
        raise UsageError(f"--model-impl transformers generates, and this model is served for the task {task}")


def in_transformers_code(config: Mapping[str, Any], impl: str) -> bool:
    """Whether Transformers' code, or the model's own, generates; where ours does, that may still stand in for it."""
    named = config.get("model_type") is not None or own_code(config) is not None
    return impl == "transformers" or (impl == "auto" and named and not has_program(config))


def generating_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The spec of a model of ours. Raises ModelError for one that sees what it would have to generate."""
    spec = describe(config)
    if any(shape.whole for shape in spec.attention):
        raise ModelError(f"{spec.architecture} sees prompts from both ends: serve it with --task embed")
    return spec
