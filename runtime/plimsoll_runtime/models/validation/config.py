"""Checks a config before torch is imported or weights are loaded."""

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
    """Raise ModelError or UsageError for problems that loading the model would find and that need no torch.

    `task`, `impl` and `max_model_len` are as in EngineConfig. `trusted`: the model's own code may run.
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
            return  # Transformers code may support it; only loading it tells
        check_length(max_model_len, spec.max_positions)


def checked_task(config: Mapping[str, Any], asked: str, *, gguf: bool) -> Task:
    """Return the task that the model is served for. Raises ModelError or UsageError."""
    task = task_of(config, asked)
    if task != "generate" and gguf:
        raise ModelError(f"GGUF files support only generation, not the task {task}; use safetensors files")
    return task


def check_impl(task: str, impl: str) -> None:
    """Raise UsageError if --model-impl asks for Transformers code and the task is not generation."""
    if impl == "transformers":
        raise UsageError(f"--model-impl transformers supports only generation, but the task is {task}")


def in_transformers_code(config: Mapping[str, Any], impl: str) -> bool:
    """Return whether Transformers code, or the model's own, would run the model instead of a program of ours."""
    named = config.get("model_type") is not None or own_code(config) is not None
    return impl == "transformers" or (impl == "auto" and named and not has_program(config))


def generating_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of a generating model of ours. Raises ModelError if its attention is bidirectional."""
    spec = describe(config)
    if any(shape.whole for shape in spec.attention):
        raise ModelError(
            f"{spec.architecture} has bidirectional attention and cannot generate; serve it with --task embed"
        )
    return spec
