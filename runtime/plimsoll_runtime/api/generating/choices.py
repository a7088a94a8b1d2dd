"""One HTTP request as engine requests: every prompt, n times."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from plimsoll_runtime.api.callers.tenants import salted
from plimsoll_runtime.api.generating.prompts import check_prompt, check_scores
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.http.record import RequestRecord
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.engine.protocol.constraint import Constraint
from plimsoll_runtime.engine.protocol.messages import AddRequest
from plimsoll_runtime.engine.protocol.prompt import Prompt
from plimsoll_runtime.engine.protocol.sampling_params import SEED_LIMIT, SamplingParams

MAX_SEQUENCES = 4096
"""Answers to one HTTP request, prompts times n."""

_PROCESS = uuid.uuid4().hex
_numbers = itertools.count()


def new_engine_id() -> str:
    """The unique beginning of a request's ids in the engine. A UUID for each cost as much as all of `plan_choices`."""
    return f"{_PROCESS}-{next(_numbers)}"


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to be made: `index` in the response, `prompt` in the request."""

    index: int
    prompt: int
    request: AddRequest

    def kept_to(self, constraint: Constraint | None) -> Choice:
        """The same with another constraint, or with none."""
        params = msgspec.structs.replace(self.request.params, constraint=constraint)
        return Choice(self.index, self.prompt, msgspec.structs.replace(self.request, params=params))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks of the engine: `n` answers to each of its prompts. `max_tokens` of each as the client said
    it, None where it leaves them to the model. `field` is where a client wrote the prompts, `scores_field` where it
    asked for their log probabilities.
    """

    prompts: Sequence[list[int]]
    params: SamplingParams
    field: str
    n: int = 1
    max_tokens: int | None = None
    cache_salt: str | None = None
    scores_field: str = "prompt_logprobs"


def plan_choices(model: ServedModel, wanted: Wanted, record: RequestRecord) -> list[Choice]:
    """All answers of a request, in the order of their index. Of a seed, each of n answers gets its own successor.

    Deadlines count from when the request came. The engine's ids are ours alone: what a client calls its request may
    not be unique. Raises ApiError when the model cannot take the prompts, or when answers or scores are too many.
    """
    prompts, n, params = wanted.prompts, wanted.n, wanted.params
    for prompt in prompts:
        check_prompt(model, prompt, wanted.max_tokens, wanted.field)
    check_scores(n, sum(map(len, prompts)), params.prompt_logprobs, wanted.scores_field)
    if len(prompts) * n > MAX_SEQUENCES:
        raise ApiError(
            f"{len(prompts)} prompts times n = {n} are more than {MAX_SEQUENCES} answers; send fewer at once.",
            param="n",
            code="invalid_value",
        )
    engine_id, salt, arrived = new_engine_id(), salted(record.tenant, wanted.cache_salt), int(record.started * 1e9)
    choices = []
    for number, shared in enumerate(map(Prompt, prompts)):
        for turn in range(n):
            index = number * n + turn
            own = params if turn == 0 or params.seed is None else _reseeded(params, params.seed + turn)
            added = AddRequest(f"{engine_id}-{index}", shared, own, salt, arrived, shares_prompt=n > 1)
            choices.append(Choice(index, number, added))
    return choices


def _reseeded(params: SamplingParams, seed: int) -> SamplingParams:
    return msgspec.structs.replace(params, seed=seed if seed < SEED_LIMIT else seed - 2 * SEED_LIMIT)
