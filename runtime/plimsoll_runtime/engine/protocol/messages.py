"""Messages between a server and its engine process (msgpack by msgspec, over ZeroMQ), batched per step, and packed
prompt log probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from plimsoll_runtime.engine.kv.cache_groups import ONE_FULL, Rule
from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams


class RequestContext(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Made once, where a request enters. Clients, the engine's process, scheduler and runner refer to this record.

    `seed`: output token i is drawn as a function of (seed, i) alone; see `SamplingParams.output_seed`.
    `cache_salt` keeps tenants' prefixes apart. `arrived_ns`: when the request came, by the monotonic clock that all
    processes of a machine share; 0 means now.
    `second_text`: if the prompt is two texts, the position of the second one; otherwise 0.
    `final_only`: the engine returns all tokens in one output, with the last of them, unless log probabilities are
    wanted.
    """

    params: SamplingParams
    seed: int
    cache_salt: str = ""
    arrived_ns: int = 0
    second_text: int = 0
    final_only: bool = False


class AddRequest(msgspec.Struct, frozen=True):
    """A tokenised prompt, to be answered once. Ids are unique per engine.

    `shares_prompt`: whether others come with the same `Prompt` object, which then crosses to the engine's process once.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    context: RequestContext
    shares_prompt: bool = False


class SharePrompt(msgspec.Struct, frozen=True, tag="share-prompt"):
    """A prompt, as `Prompt.to_bytes` makes it, that requests name by its key until it is dropped."""

    key: int
    token_ids: bytes


class DropPrompt(msgspec.Struct, frozen=True, tag="drop-prompt"):
    """No more requests name this prompt."""

    key: int


class AddAnswer(msgspec.Struct, frozen=True, tag="add"):
    """An `AddRequest` on its way; `prompt` is a shared one's key, or what `Prompt.to_bytes` makes."""

    request_id: str
    prompt: bytes | int
    context: RequestContext


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    """Forget these requests; unknown or finished ids are ignored, no output follows."""

    request_ids: list[str]


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset-prefix-cache"):
    """Forget every cached prefix; requests that run are not affected."""


class Vocabulary(msgspec.Struct, frozen=True, tag="vocabulary"):
    """How tokens spell text, for constraints: told once, before the first request that has one.

    `spelled` are all tokens' bytes one after the other, `lengths` uint32s in the machine's order; a token of no bytes
    is never written by a grammar, nor is one of `special_ids`. `end_ids` end a text.
    """

    spelled: bytes
    lengths: bytes
    special_ids: list[int]
    end_ids: list[int]


class Resize(msgspec.Struct, frozen=True, tag="resize"):
    """Have whole blocks of at most so many bytes in the KV cache; `Resized` with the same key says when it is done."""

    key: int
    kv_bytes: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End the engine process now; whoever wants to drain has waited before."""


Command = AddAnswer | SharePrompt | DropPrompt | AbortRequests | ResetPrefixCache | Vocabulary | Resize | Shutdown


class LogprobEntry(msgspec.Struct, frozen=True, array_like=True):
    """One position's log probability, rank and most likely alternatives (token id, log probability)."""

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class RequestOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one step added to one request, or all steps if it is `final_only`.

    `finish_reason`: None while it runs; "stop" (EOS or a stop token), "length", "error" or "deadline" (the first
    token was not there in time); `error` says in words why it is one of the last two. What is aborted has no output.
    `stop_token_id` names the stop token that ended it (it is the last of `token_ids`).
    `prompt_logprobs` comes once, with the first token, packed by `pack`: entry i belongs to prompt token
    i + 1.
    `cached_tokens` (with the first token): prompt tokens whose KV came from the prefix cache.
    `vector`: what came of a prompt in place of tokens, float32 in the machine's order.
    """

    request_id: str
    token_ids: list[int] = []
    logprobs: list[LogprobEntry] = []
    prompt_logprobs: list[bytes] | None = None
    finish_reason: str | None = None
    stop_token_id: int | None = None
    cached_tokens: int = 0
    error: str | None = None
    vector: bytes | None = None


class TierStats(msgspec.Struct, frozen=True):
    """The tiers below the KV cache, in blocks unless it says tokens; counters from `hit_tokens` on.

    `under_way` are being read or written. `hit_tokens` came back; blocks were `spilled` from the KV cache, `dropped`
    because nothing was free, `loaded` from the disk, `failed` to be written or read, `passed` over there because
    computing them again was predicted to be faster.
    """

    host_blocks: int = 0
    disk_blocks: int = 0
    under_way: int = 0
    hit_tokens: int = 0
    spilled: int = 0
    dropped: int = 0
    loaded: int = 0
    failed: int = 0
    passed: int = 0


class SnapshotStats(msgspec.Struct, frozen=True):
    """Snapshots of recurrent states: `rows` for them, `kept` ones that can be found, and counters.

    `taken` were written, and `resumed` ones went on from by sequences.
    """

    rows: int = 0
    kept: int = 0
    taken: int = 0
    resumed: int = 0


class EngineStats(msgspec.Struct, frozen=True):
    """Gauges and counters of an engine, taken after a step. Counters only grow.

    `phase_seconds`: seconds spent in each `step_timing.StepPhase`; empty where nobody times the steps.
    `kernels_compiled`: variants of Triton's kernels that were compiled since the warm-up, while requests waited.
    `cache_hit_tokens` counts what requests found when they were first admitted, in the cache or in the `tiers` (None
    where there are none). `snapshots` is None where there are none.
    """

    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    cache_query_tokens: int = 0
    cache_hit_tokens: int = 0
    preemptions: int = 0
    evictions: int = 0
    expired: int = 0
    broken_off: int = 0
    attention_fallbacks: int = 0
    kernels_compiled: int = 0
    phase_seconds: tuple[float, ...] = ()
    tiers: TierStats | None = None
    snapshots: SnapshotStats | None = None


class LoadProgress(msgspec.Struct, frozen=True, tag="progress"):
    """A stage of the start ("weights", "warm-up") and how far it is, from 0 to 1."""

    stage: str
    fraction: float


class EngineInfo(msgspec.Struct, frozen=True, tag="ready"):
    """The engine is ready. Sizes in tokens or blocks; bytes where the name says so.

    `num_blocks` and `kv_bytes` are what the KV cache has at the start; it may be given `least_blocks` to `most_blocks`
    (0: as many as at the start), the padding block always included. `weight_bytes` are all weights, `image_bytes` those
    of them in an image, which other processes may hold too. `workspace_bytes` is what the largest step takes, and
    on a GPU what graphs of steps may.
    `overhead_bytes`: private memory that the process had before any of these.
    `groups`: what each group of layers keeps in the cache: a block is of one of them at a time.
    `max_sequences`: how many a batch may have, 0 where that is not known. Where no layer attends the blocks have no
    bytes. `recurrent`: sequences have states besides, of which there are `snapshots` rows at block boundaries,
    `snapshot_bytes` in all (they are part of the workspace); without any, no prefix is found. `pooling`: what it gives
    in place of tokens; None: it generates. `findings`: what a person should hear of the device, a text for each.
    """

    model: str
    architecture: str
    dtype: str
    device: str
    attention_backend: str
    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    weight_bytes: int
    kv_bytes: int
    eos_token_ids: list[int]
    policy: str = "fcfs"
    least_blocks: int = 0
    most_blocks: int = 0
    image_bytes: int = 0
    workspace_bytes: int = 0
    overhead_bytes: int = 0
    max_sequences: int = 0
    recurrent: bool = False
    snapshots: int = 0
    snapshot_bytes: int = 0
    groups: tuple[Rule, ...] = ONE_FULL
    pooling: PoolingInfo | None = None
    findings: tuple[str, ...] = ()


class EngineFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine cannot start or go on. `kind` is one of plimsoll_runtime.errors.ErrorKind.

    `device_lost`: nor can any other process with the same device.
    """

    kind: str
    message: str
    device_lost: bool = False


class Resized(msgspec.Struct, frozen=True, tag="resized"):
    """The KV cache has so many bytes, and what it had more is given back; `error` says why a `Resize` was refused."""

    key: int
    kv_bytes: int
    error: str | None = None


class StepOutputs(msgspec.Struct, frozen=True, tag="step"):
    """Everything that one step produced."""

    outputs: list[RequestOutput]
    stats: EngineStats


Event = LoadProgress | EngineInfo | EngineFailed | Resized | StepOutputs

PART = 1024
"""Entries of a part, at most. With 20 alternatives each it takes some milliseconds to unpack."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[LogprobEntry]).decode


def pack(entries: Sequence[LogprobEntry]) -> list[bytes]:
    """Parts that hold the entries in order; none for no entries."""
    following = iter(entries)
    return [_encode(part) for part in iter(lambda: list(islice(following, PART)), [])]


def unpack(parts: Sequence[bytes]) -> Iterator[LogprobEntry]:
    """The entries of packed parts, one part unfolded at a time."""
    for part in parts:
        yield from _decode(part)
