"""Sampling defaults that a model's own files recommend (generation_config.json)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from plimsoll_runtime.engine.protocol.sampling_params import ParamsError, SamplingParams
from plimsoll_runtime.errors import ModelError

if TYPE_CHECKING:
    from plimsoll_runtime.weights.files import ModelFiles

FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
GenerationConfigSource = Literal["model", "none"]
"""Source of defaults: the model's recommendations, or none (--generation-config)."""
LARGEST_TOP_K = 2**31 - 1
WHAT_TO_DO = "correct it in the file, or ignore its sampling defaults with --generation-config none"

Recommended = Mapping[str, float]
"""Values by field of `SamplingParams`."""


def recommended(files: ModelFiles, source: GenerationConfigSource = "model") -> Recommended:
    """Return defaults for requests that leave these fields out; {} for the source "none".

    `do_sample` is not read: a temperature applies whether or not it is set, as in vLLM. Raises ModelError for a value
    that a request could not have either.
    """
    if source == "none":
        return {}
    given = {field: value for field in FIELDS if (value := files.generation_config.get(field)) is not None}
    return {field: _checked(files.name, field, value) for field, value in given.items()}


def _checked(model: str, field: str, value: Any) -> float:
    """Return the value in the type and range of a request's field. Raises ModelError."""
    if type(value) not in (int, float):
        raise _unusable(model, field, value, "must be a number")
    number: float = int(value) if field == "top_k" and value == value // 1 else value
    if field == "top_k" and not (type(number) is int and number <= LARGEST_TOP_K):
        raise _unusable(model, field, value, f"must be an integer of at most {LARGEST_TOP_K}")
    try:
        number = number if field == "top_k" else float(number)
        SamplingParams(**{field: number})  # type: ignore[arg-type]
    except OverflowError as error:
        raise _unusable(model, field, value, "must be a number that fits in 64 bits") from error
    except ParamsError as error:
        raise _unusable(model, field, value, str(error).removeprefix(f"{field}: ")) from error
    return number


def _unusable(model: str, field: str, value: Any, reason: str) -> ModelError:
    return ModelError(f"{model}: generation_config has {field} {repr(value)[:64]}: it {reason}; {WHAT_TO_DO}")
