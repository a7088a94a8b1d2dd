"""Limits of an engine: its sizes, and checks of requests against them."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.kv.cache_groups import ONE_FULL, Rule, longest_within, sequence_blocks
from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo
from plimsoll_runtime.engine.protocol.prompt import Prompt
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.errors import UsageError


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes that the scheduler works with, in tokens unless the name says blocks or sequences."""

    num_blocks: int
    block_size: int
    max_len: int
    max_batch_tokens: int
    max_sequences: int
    eos_token_ids: frozenset[int] = frozenset()
    prefix_caching: bool = True
    paced: bool = False
    """Whether prompts are cut into small chunks when they share steps with decodes: for devices without spare compute.
    """
    burst_tokens: int = 768
    """Prompt tokens of a paced step while many prompts wait next to few decodes (see `token_budget.Pacer`)."""
    groups: tuple[Rule, ...] = ONE_FULL
    """The rule of each cache group."""
    whole_prompts: bool = False
    """Whether each prompt must be computed in one step."""
    stages: int = 1
    """Number of steps under way at once: the stages of a pipeline. No two of them sample from the same sequence."""
    snapshots: int = 0
    """Rows for state snapshots; 0 if no layer is recurrent."""
    snapshot_worth: int = 64
    """Least distance in tokens between two state snapshots of a sequence: taking one ends a step early, which costs
    about as much as computing this many tokens."""

    def __post_init__(self) -> None:
        for name in ("block_size", "max_len", "max_batch_tokens", "max_sequences"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        holds = longest_within(self.groups, self.num_blocks - 1, self.block_size, self.max_len)
        if self.max_len > holds:
            raise UsageError(f"the maximum length is {self.max_len} tokens, but the KV cache holds only {holds}")


def check_length(max_model_len: int | None, model_limit: int) -> None:
    """Raise UsageError if --max-model-len exceeds the model's context."""
    if max_model_len is not None and max_model_len > model_limit:
        raise UsageError(f"--max-model-len {max_model_len} exceeds the model's limit of {model_limit} tokens")


STAGED_TOKENS = 256
"""Tokens of a step that keep a stage of a pipeline busy: with more, the next stage waits longer for the first step."""


def step_tokens(config: EngineConfig, longest: int, *, whole: bool) -> int:
    """Return the most tokens of a step. Those of a pipeline are smaller, so that all stages soon have one.

    `whole`: each prompt is computed in one step, so the longest one must fit.
    """
    stages, most = config.pipeline_parallel, config.max_batch_tokens
    if stages > 1:
        most = min(most, max(STAGED_TOKENS, most // (4 * stages), 2 * config.max_sequences // stages))
    return max(most, longest) if whole else most


def longest_sequence(info: EngineInfo) -> int:
    """Return the most tokens of a sequence, prompt and output together. `Limits` checks that the cache holds them."""
    return info.max_model_len


def cached_tokens(info: EngineInfo) -> int:
    """Return the longest sequence, in tokens, that the whole KV cache holds, even beyond the model's context."""
    most = max(info.max_model_len, (info.num_blocks - 1) * info.block_size)
    return longest_within(info.groups, info.num_blocks - 1, info.block_size, most)


def longest_at_once(info: EngineInfo) -> float:
    """Return how many sequences of maximum length the KV cache holds at once, as a fraction: 2.5 are two and a half."""
    return (info.num_blocks - 1) / sequence_blocks(info.groups, info.max_model_len, info.block_size)


def blocks_within(kv_bytes: int, info: EngineInfo) -> int:
    """Return the number of whole blocks in `kv_bytes`. Raises UsageError for a size that this engine cannot have."""
    each = info.kv_bytes // info.num_blocks
    if not each:
        raise UsageError("the model has no attention layers, so it has no KV cache to resize")
    least, most = info.least_blocks or info.num_blocks, info.most_blocks or info.num_blocks
    if info.device != "cpu":
        raise UsageError(f"the KV cache of a {info.device} device cannot be resized; it has {info.kv_bytes} bytes")
    if not least * each <= kv_bytes < (most + 1) * each:
        raise UsageError(
            f"the KV cache can have {least * each} to {most * each} bytes, not {kv_bytes}: the minimum holds one "
            f"sequence of {info.max_model_len} tokens, the maximum is the reserved address space"
        )
    return kv_bytes // each


def check_request(request: AddRequest, info: EngineInfo) -> None:
    """Raise UsageError, with the numbers, for a request that can never be served."""
    prompt, limit = request.prompt_token_ids, longest_sequence(info)
    if not prompt:
        raise UsageError("the prompt is empty; give at least one token")
    if info.pooling is not None and len(prompt) > limit:
        raise UsageError(f"the prompt has {len(prompt)} tokens, but at most {limit} are allowed; shorten it")
    if info.pooling is None and len(prompt) >= limit:
        held = cached_tokens(info)
        options = "--max-model-len and --kv-memory" if held == limit else "--max-model-len"
        raise UsageError(
            f"the prompt has {len(prompt)} tokens, but prompt and output together may have at most {limit} "
            f"(the KV cache holds {held}); shorten the prompt or raise {options}"
        )
    lowest, highest = prompt.extent if isinstance(prompt, Prompt) else (min(prompt), max(prompt))
    if lowest < 0 or highest >= info.vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise UsageError(f"token id {wrong} is not in the vocabulary of {info.vocab_size} tokens")
    check_priority(request.context.params, info)


def check_priority(params: SamplingParams, info: EngineInfo) -> None:
    """Raise UsageError for a priority that the engine's policy would ignore."""
    if params.priority and info.policy != "priority":
        raise UsageError(
            f"the priority {params.priority} would be ignored, because the engine's policy is {info.policy!r}; "
            "leave it out, or start the engine with --policy priority"
        )
