"""One HTTP request as engine requests: every prompt, n times."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from plimsoll_runtime.api.errors import ApiError
from plimsoll_runtime.engine.messages import AddRequest
from plimsoll_runtime.engine.params import SEED_LIMIT, SamplingParams
from plimsoll_runtime.engine.prompt import Prompt

MAX_SEQUENCES = 4096
"""Answers to one HTTP request, prompts times n."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to be made: `index` in the response, `prompt` in the request."""

    index: int
    prompt: int
    request: AddRequest


def plan_choices(
    prompts: Sequence[list[int]], n: int, params: SamplingParams, cache_salt: str, arrived: float
) -> list[Choice]:
    """All answers of a request, in the order of their index. Of a seed, each of n answers gets its own successor.

    `arrived`: when the request came, in seconds of the monotonic clock; deadlines count from there. The engine's ids
    are ours alone: what a client calls its request may not be unique. Raises ApiError when they are too many.
    """
    if len(prompts) * n > MAX_SEQUENCES:
        raise ApiError(
            f"{len(prompts)} prompts times n = {n} are more than {MAX_SEQUENCES} answers; send fewer at once.",
            param="n",
            code="invalid_value",
        )
    engine_id = uuid.uuid4().hex
    choices = []
    for prompt, ids in enumerate(map(Prompt, prompts)):
        for turn in range(n):
            index = prompt * n + turn
            own = params if turn == 0 or params.seed is None else _reseeded(params, params.seed + turn)
            added = AddRequest(f"{engine_id}-{index}", ids, own, cache_salt, int(arrived * 1e9), shares_prompt=n > 1)
            choices.append(Choice(index, prompt, added))
    return choices


def _reseeded(params: SamplingParams, seed: int) -> SamplingParams:
    return msgspec.structs.replace(params, seed=seed if seed < SEED_LIMIT else seed - 2 * SEED_LIMIT)
