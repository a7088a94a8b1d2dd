"""Lets requests to the engine whose answers are to be kept to something, once it is known that they can be."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from weakref import WeakKeyDictionary

from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.engine.protocol.messages import EngineInfo, Vocabulary
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.structured.checker import Checker
from plimsoll_runtime.structured.grammar import check_tokens
from plimsoll_runtime.structured.vocabulary import vocabulary_of
from plimsoll_runtime.text.tokenizer import Tokenizer

_checker = Checker()
_thread = ThreadPoolExecutor(1, thread_name_prefix="constraints")
_vocabularies: WeakKeyDictionary[Tokenizer, Vocabulary] = WeakKeyDictionary()


async def admit(model: ServedModel, params: SamplingParams, param: str) -> None:
    """See to it that the model's engine can take requests with a constraint, which stands in the field `param`, and
    with a budget of thoughts. Raises ApiError for what cannot be kept to.
    """
    constraint, thought = params.constraint, params.thought
    if constraint is None and (thought is None or thought.budget is None):
        return
    info = model.engine.info
    try:
        if constraint is not None:
            check_tokens(constraint, info.vocab_size)
        vocabulary = _vocabularies.get(model.tokenizer)
        if vocabulary is None or not (constraint is None or _checker.has_passed(constraint)):
            check = partial(_checked, model.tokenizer, info, constraint)
            vocabulary = await asyncio.get_running_loop().run_in_executor(_thread, check)
    except ConstraintError as error:
        raise invalid("thinking_budget" if constraint is None else param, str(error)) from error
    model.engine.use(vocabulary)


def _checked(tokenizer: Tokenizer, info: EngineInfo, constraint: Constraint | None) -> Vocabulary:
    if constraint is not None:
        _checker.check(constraint)
    found = _vocabularies.get(tokenizer)
    if found is None:
        found = _vocabularies[tokenizer] = vocabulary_of(tokenizer, info.vocab_size, info.eos_token_ids)
    return found
