"""What an engine can serve at all: its sizes, and requests, checked where they enter and where they are queued."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.engine.kv.cache_groups import ONE_FULL, Rule, longest_within, sequence_blocks
from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo
from plimsoll_runtime.engine.protocol.prompt import Prompt
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.errors import UsageError


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler works with, in tokens unless they say blocks or sequences."""

    num_blocks: int
    block_size: int
    max_len: int
    max_batch_tokens: int
    max_sequences: int
    eos_token_ids: frozenset[int] = frozenset()
    prefix_caching: bool = True
    paced: bool = False
    """Whether prompts are cut small beside decodes: for devices on which every token costs time."""
    burst_tokens: int = 768
    """Of prompts in a paced step while more come than decode."""
    groups: tuple[Rule, ...] = ONE_FULL
    """What each group of layers keeps in the cache."""
    whole_prompts: bool = False
    """Whether a prompt is computed in one step or not at all."""
    snapshots: int = 0
    """Rows for states of recurrent layers at block boundaries; 0 where no layer is recurrent."""
    snapshot_worth: int = 64
    """Tokens that a snapshot has to spare over the one before it: a step that ends for it costs about as much."""

    def __post_init__(self) -> None:
        for name in ("block_size", "max_len", "max_batch_tokens", "max_sequences"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        holds = longest_within(self.groups, self.num_blocks - 1, self.block_size, self.max_len)
        if self.max_len > holds:
            raise UsageError(f"a sequence may have {self.max_len} tokens, but the KV cache holds only {holds}")


def check_length(max_model_len: int | None, model_limit: int) -> None:
    """Raises UsageError where --max-model-len asks for more than the model has positions for."""
    if max_model_len is not None and max_model_len > model_limit:
        raise UsageError(f"--max-model-len {max_model_len} is beyond the model's limit of {model_limit} tokens")


def step_tokens(max_batch_tokens: int, longest: int, *, whole: bool) -> int:
    """Most tokens of a step: where prompts are computed whole, it holds the longest whatever was asked for."""
    return max(max_batch_tokens, longest) if whole else max_batch_tokens


def longest_sequence(info: EngineInfo) -> int:
    """Most tokens, prompt and answer together, that a sequence may have; `Limits` checks that the cache holds them."""
    return info.max_model_len


def cached_tokens(info: EngineInfo) -> int:
    """Most tokens of a sequence that has the whole KV cache for itself, as far as blocks or the model's context go."""
    most = max(info.max_model_len, (info.num_blocks - 1) * info.block_size)
    return longest_within(info.groups, info.num_blocks - 1, info.block_size, most)


def longest_at_once(info: EngineInfo) -> float:
    """How many of the longest sequences the KV cache holds."""
    return (info.num_blocks - 1) / sequence_blocks(info.groups, info.max_model_len, info.block_size)


def blocks_within(kv_bytes: int, info: EngineInfo) -> int:
    """Whole blocks that a KV cache of so many bytes has. Raises UsageError for a size that the engine's cannot have."""
    each = info.kv_bytes // info.num_blocks
    if not each:
        raise UsageError("no layer of the model attends: it has no KV cache that could be given another size")
    least, most = info.least_blocks or info.num_blocks, info.most_blocks or info.num_blocks
    if info.device != "cpu":
        raise UsageError(f"the KV cache of a {info.device} device keeps its size of {info.kv_bytes} bytes")
    if not least * each <= kv_bytes < (most + 1) * each:
        raise UsageError(
            f"the KV cache can have {least * each} to {most * each} bytes, and not {kv_bytes}: the least holds a "
            f"sequence of {info.max_model_len} tokens, and beyond the most no addresses are reserved"
        )
    return kv_bytes // each


def check_request(request: AddRequest, info: EngineInfo) -> None:
    """Raises UsageError for a request that could never be served, with the numbers."""
    prompt, limit = request.prompt_token_ids, longest_sequence(info)
    if not prompt:
        raise UsageError("the prompt is empty; give at least one token")
    if info.pooling is not None and len(prompt) > limit:
        raise UsageError(f"the prompt has {len(prompt)} tokens, and may have {limit}; shorten it")
    if info.pooling is None and len(prompt) >= limit:
        raise UsageError(
            f"the prompt has {len(prompt)} tokens, but prompt and answer together may have {limit} "
            f"(the model's context is {info.max_model_len}, the KV cache holds "
            f"{cached_tokens(info)}); shorten the prompt or raise --max-model-len or --kv-memory"
        )
    lowest, highest = prompt.extent if isinstance(prompt, Prompt) else (min(prompt), max(prompt))
    if lowest < 0 or highest >= info.vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise UsageError(f"token id {wrong} is not in the vocabulary of {info.vocab_size} tokens")
    check_priority(request.context.params, info)


def check_priority(params: SamplingParams, info: EngineInfo) -> None:
    """Raises UsageError for a priority that would be ignored: whoever gives one counts on it."""
    if params.priority and info.policy != "priority":
        raise UsageError(
            f"the priority {params.priority} would be ignored, because the engine's policy is {info.policy!r}; "
            "leave it out, or start the engine with --policy priority"
        )
