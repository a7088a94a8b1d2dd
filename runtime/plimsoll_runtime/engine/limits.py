"""What an engine can serve at all: checked where a request enters, and again where it is queued."""

from __future__ import annotations

from plimsoll_runtime.engine.messages import AddRequest, EngineInfo
from plimsoll_runtime.engine.params import SamplingParams
from plimsoll_runtime.errors import UsageError


def longest_sequence(info: EngineInfo) -> int:
    """Most tokens, prompt and answer together, that a sequence may have: the model's limit and the cache's."""
    return min(info.max_model_len, (info.num_blocks - 1) * info.block_size)


def check_request(request: AddRequest, info: EngineInfo) -> None:
    """Raises UsageError for a request that could never be served, with the numbers."""
    prompt, limit = request.prompt_token_ids, longest_sequence(info)
    if not prompt:
        raise UsageError("the prompt is empty; give at least one token")
    if len(prompt) >= limit:
        raise UsageError(
            f"the prompt has {len(prompt)} tokens, but prompt and answer together may have {limit} "
            f"(the model's context is {info.max_model_len}, the KV cache holds "
            f"{(info.num_blocks - 1) * info.block_size}); shorten the prompt or raise --max-model-len or --kv-memory"
        )
    lowest, highest = min(prompt), max(prompt)
    if lowest < 0 or highest >= info.vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise UsageError(f"token id {wrong} is not in the vocabulary of {info.vocab_size} tokens")
    check_priority(request.params, info)


def check_priority(params: SamplingParams, info: EngineInfo) -> None:
    """Raises UsageError for a priority that would be ignored: whoever gives one counts on it."""
    if params.priority and info.policy != "priority":
        raise UsageError(
            f"the priority {params.priority} would be ignored, because the engine's policy is {info.policy!r}; "
            "leave it out, or start the engine with --policy priority"
        )
