"""Messages between a server and its engine process (msgpack by msgspec, over ZeroMQ), batched by step, and packed
prompt log probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import islice

import msgspec

from plimsoll_runtime.engine.kv.cache_groups import ONE_FULL, Rule
from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.work.model import WorkModel


class RequestContext(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The parts of a request besides its prompt. Created once; clients, the engine process, scheduler and runner share
    it.

    - `seed`: output token i is drawn as a function of (seed, i) alone; see `SamplingParams.output_seed`.
    - `cache_salt`: separates the cached prefixes of tenants.
    - `arrived_ns`: arrival time on the monotonic clock that all processes of a machine share; 0 means now.
    - `second_text`: if the prompt is two texts, the position of the second one's first token; otherwise 0.
    - `final_only`: the engine returns all tokens in one output, with the last token, unless log probabilities are
      requested.
    """

    params: SamplingParams
    seed: int
    cache_salt: str = ""
    arrived_ns: int = 0
    second_text: int = 0
    final_only: bool = False


class AddRequest(msgspec.Struct, frozen=True):
    """A tokenised prompt for one output. Ids are unique for an engine.

    `shares_prompt`: other requests have the same `Prompt` object, which is then sent to the engine process once.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    context: RequestContext
    shares_prompt: bool = False


class SharePrompt(msgspec.Struct, frozen=True, tag="share-prompt"):
    """Gives the engine process a prompt (`Prompt.to_bytes`) that requests refer to by `key` until `DropPrompt`."""

    key: int
    token_ids: bytes


class DropPrompt(msgspec.Struct, frozen=True, tag="drop-prompt"):
    """Drops a shared prompt to which no further requests refer."""

    key: int


class AddAnswer(msgspec.Struct, frozen=True, tag="add"):
    """An `AddRequest` as the engine process receives it. `prompt` is the key of a shared prompt, or the bytes of
    `Prompt.to_bytes`.
    """

    request_id: str
    prompt: bytes | int
    context: RequestContext


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    """Cancels requests; no output is sent for them. Unknown or finished ids are ignored."""

    request_ids: list[str]


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset-prefix-cache"):
    """Removes every cached prefix; running requests are not affected."""


class Vocabulary(msgspec.Struct, frozen=True, tag="vocabulary"):
    """The bytes of all tokens, for constraints. Sent once, before the first request with a constraint.

    `spelled` are the bytes of all tokens, one after the other, `lengths` their lengths as uint32 in native byte order.
    A grammar never allows a token without bytes or one of `special_ids`. `end_ids` end a text.
    """

    spelled: bytes
    lengths: bytes
    special_ids: list[int]
    end_ids: list[int]


class Resize(msgspec.Struct, frozen=True, tag="resize"):
    """Resizes the KV cache to whole blocks of at most `kv_bytes`. `Resized` with the same key reports the end."""

    key: int
    kv_bytes: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Ends the engine process immediately. To drain it, wait for its requests first."""


Command = AddAnswer | SharePrompt | DropPrompt | AbortRequests | ResetPrefixCache | Vocabulary | Resize | Shutdown


class LogprobEntry(msgspec.Struct, frozen=True, array_like=True):
    """A position's log probability, token rank and most likely alternatives (token id, log probability)."""

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]] = []


class MarkKind(IntEnum):
    """What happens to a request in the engine.

    - QUEUED: it has joined the waiting queue, after its constraint was compiled.
    - SCHEDULED: it runs, for the first time or again. `value`: its tokens that need not be computed, from the prefix
      cache or its tiers. `why`: what it waited for.
    - CHUNK: a step computes `value` tokens of its prompt, or generated ones that it had before a preemption.
    - FIRST_TOKEN: its first token has been sampled.
    - PREEMPTED: it waits again. `why`: what was lacking.
    - FINISHED: it has ended.
    """

    QUEUED = 0
    SCHEDULED = 1
    CHUNK = 2
    FIRST_TOKEN = 3
    PREEMPTED = 4
    FINISHED = 5


class WaitReason(IntEnum):
    """What a request in the waiting queue lacks: nothing (the next step takes it), a slot in the batch, KV blocks, room
    in a step's tokens, its prefix from disk, the processes that compute steps (they are being replaced), or memory for
    a step of this size; or another request was more urgent.
    """

    NOTHING = 0
    SLOTS = 1
    KV_BLOCKS = 2
    TOKEN_BUDGET = 3
    DISK = 4
    LOST_PROCESSES = 5
    DEVICE_MEMORY = 6
    MORE_URGENT = 7


class Mark(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What happened to a request, and when, in nanoseconds of the monotonic clock."""

    kind: MarkKind
    at_ns: int
    value: int = 0
    why: WaitReason = WaitReason.NOTHING


MOST_MARKS = 256
"""Marks of one request that wait for its next output; see `Report.mark` for a request with more."""


class RequestOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """The output of one request in one step, or in all steps if it is `final_only`.

    - `finish_reason`: None while the request runs; "stop" (EOS or a stop token), "length", "error", "deadline" (no
      first token in time) or "unavailable" (the engine cannot run steps for the moment). For the last three `error`
      has the reason in words. Aborted requests have no output.
    - `stop_token_id`: the stop token that ended it, which is the last of `token_ids`.
    - `prompt_logprobs`: sent once, with the first token, packed by `pack`. Entry i belongs to prompt token i + 1.
    - `cached_tokens`: sent with the first token: prompt tokens whose KV came from the prefix cache or its tiers.
    - `vector`: the result of a pooling model, which generates no tokens: float32 in native byte order.
    - `marks`: what has happened to the request since its last output.
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
    marks: list[Mark] = []


class TierStats(msgspec.Struct, frozen=True):
    """The tiers below the KV cache, in blocks unless the name says tokens. Fields from `hit_tokens` on are counters.

    `host_blocks` are in host memory, `disk_blocks` on the disk. `under_way` blocks are being read from the disk or
    written to it. `hit_tokens` were restored. Blocks were `spilled` from the KV cache, `dropped` for lack of a free
    frame, `loaded` from the disk, `failed` to be read or written, or `passed` over on disk because computing them again
    was predicted to be faster.
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
    """State snapshots of recurrent layers: `rows` is their maximum number, `kept` the number from which a sequence can
    resume now. Counters: `taken` snapshots were written, and sequences resumed `resumed` times.
    """

    rows: int = 0
    kept: int = 0
    taken: int = 0
    resumed: int = 0


class GraphStats(msgspec.Struct, frozen=True):
    """Counters of a device with CUDA graphs: forward passes that were `replayed`, and those `launched` kernel by kernel
    because no graph was captured for them. `padding`: rows added to replayed passes, up to a capture size.
    """

    replayed: int = 0
    launched: int = 0
    padding: int = 0


class GroupStats(msgspec.Struct, frozen=True):
    """The ranks of a parallel group.

    - `generation`: number of the last generation that was started. `lost`: generations that have ended, by
      `parallel.losses.LossCause`; a failed start counts. `reason`: why the last one of them has ended, in words.
      `stage`: what the start of the next one waits for; both are empty if nothing is to be said.
    - `refused_connections`: connections to the leader that were closed, because they did not prove their identity.
    - `waited`: seconds in which a rank has waited for others in sums, by rank. Ranks that do not measure it are
      missing.
    - `instruction_set`: see `parallel.instruction_sets.GroupSet.difference`.
    """

    generation: int = 0
    lost: Mapping[str, int] = {}
    reason: str = ""
    stage: str = ""
    refused_connections: int = 0
    waited: Mapping[int, float] = {}
    instruction_set: str = ""


class EngineStats(msgspec.Struct, frozen=True):
    """Gauges and counters of an engine after a step. Counters only grow.

    - `running`, `waiting`: sequences. `blocks_total`: without the padding block; of these, `blocks_used` have
      references and `blocks_cached` only a block hash.
    - `phase_seconds`: seconds spent in each `step_timing.StepPhase`; empty if steps are not timed.
    - `kernels_compiled`: Triton kernel variants compiled since the warm-up, while requests waited.
    - `cache_query_tokens`: prompt tokens of admitted requests. `cache_hit_tokens`: those that were found before a
      request's first token, in the prefix cache or the tiers.
    - `recovering`: lost processes are being replaced, and no step can run.
    - `expired`: requests whose deadline passed before their first token. `broken_off`: running requests that ended with
      an error, such as NaN in their logits or a lack of memory.
    - `attention_backend`: the backend in use if it has replaced that of `EngineInfo`, else empty.
    - `step_tokens`, `step_sequences`: numbers of steps by size, see `work.counter.StepCounts`. `amounts`: the sums of
      their amounts, in the order of `work.model.WorkModel`; `EngineInfo.work` makes operations and bytes of them.
    - `tiers`, `snapshots`, `group`, `graphs`: None if the engine has none.
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
    recovering: bool = False
    phase_seconds: tuple[float, ...] = ()
    tiers: TierStats | None = None
    snapshots: SnapshotStats | None = None
    group: GroupStats | None = None
    graphs: GraphStats | None = None
    attention_backend: str = ""
    step_tokens: tuple[int, ...] = ()
    step_sequences: tuple[int, ...] = ()
    amounts: tuple[float, ...] = ()


class LoadProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Progress of one stage of the start ("weights", "warm-up"), from 0 to 1."""

    stage: str
    fraction: float


class EngineInfo(msgspec.Struct, frozen=True, tag="ready"):
    """The engine is ready. Sizes are in tokens or blocks, or in bytes if the name says so.

    - `num_blocks`, `kv_bytes`: size of the KV cache at the start. It can be resized to `least_blocks` .. `most_blocks`
      (0: not below or above the start size). All include the padding block. Blocks of a model without attention have no
      bytes.
    - `weight_bytes`: all weights. `image_bytes`: those of them in an image, which other processes may share.
    - `workspace_bytes`: memory of the largest step, on a GPU also that of CUDA graphs.
    - `overhead_bytes`: private memory that the process had before any of these.
    - `groups`: the rules of the cache groups. A block belongs to one group at a time.
    - `max_sequences`: most sequences of a batch; 0: unknown.
    - `recurrent`: sequences have recurrent states, with `snapshots` rows for state snapshots (`snapshot_bytes` in all,
      part of the workspace). Without rows, prefixes are not cached.
    - `pooling`: the results of a pooling model; None: the model generates tokens.
    - `findings`: messages about the device for the user.
    - `attention_seconds`: measured time of the backend's prompt chunk and of its decodes, for all layers (the work is
      `attention.benchmark.expected_mix`); None: not measured.
    - `work`: the work of steps; None: unknown (Transformers code). `peak_flops`, `peak_bytes`: the device's measured
      limits, in operations and bytes per second; 0: not measured.

    Bytes, work and peaks are sums over the ranks of a parallel group, except for `overhead_bytes`, which is that of
    rank 0.
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
    attention_seconds: tuple[float, float] | None = None
    work: WorkModel | None = None
    peak_flops: int = 0
    peak_bytes: int = 0


class ProcessFailed(msgspec.Struct, frozen=True, tag="failed"):
    """A process has failed, or could not execute a command. `kind` is the value of a plimsoll_runtime.errors.ErrorKind.

    `device_lost`: no other process can use the device either.
    """

    kind: str
    message: str
    device_lost: bool = False


class Resized(msgspec.Struct, frozen=True, tag="resized"):
    """The KV cache has `kv_bytes`, and surplus memory is returned; `error`: why a `Resize` was refused."""

    key: int
    kv_bytes: int
    error: str | None = None


class StepReason(IntEnum):
    """Why a step was recorded: it is one of every so many, or it took much longer than others of its size."""

    SAMPLED = 0
    SLOW = 1


class OpWork(msgspec.Struct, frozen=True, array_like=True):
    """The work of all ops of one kind in a step: `seconds` as measured, None if they were not; floating point
    operations and bytes by the cost model.
    """

    kind: str
    seconds: float | None
    flops: int
    nbytes: int


class TracedStep(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A step that was recorded for traces. Times are in nanoseconds of the monotonic clock.

    - `phases`: `step_timing.StepPhase`, start and end of each.
    - `request_ids`: the requests in it, at most MOST_TRACED_REQUESTS; `sequences` is their whole number.
    - `usual_seconds`: mean of the steps of its size before it; None: too few of them.
    - `spilled`, `restored`: KV blocks copied to host memory and back. `copied`: those copied within the cache.
    - `ops`: empty if the model's ops are not known, or computed by other processes.
    - `waited`: seconds in which each rank of a group has waited for others, by rank; empty if that is not measured.
    """

    why: StepReason
    start_ns: int
    end_ns: int
    tokens: int
    sequences: int
    phases: list[tuple[int, int, int]] = []
    request_ids: list[str] = []
    usual_seconds: float | None = None
    spilled: int = 0
    restored: int = 0
    copied: int = 0
    ops: list[OpWork] = []
    waited: dict[int, float] = {}


MOST_TRACED_REQUESTS = 256


class StepOutputs(msgspec.Struct, frozen=True, tag="step", omit_defaults=True):
    """The outputs of one step, and the engine's statistics after it. `traced`: the step, if it was recorded."""

    outputs: list[RequestOutput]
    stats: EngineStats
    traced: TracedStep | None = None


Event = LoadProgress | EngineInfo | ProcessFailed | Resized | StepOutputs

PART = 1024
"""Most LogprobEntry objects that `pack` encodes together. With 20 alternatives each, they take some milliseconds to
decode."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[LogprobEntry]).decode


def pack(entries: Sequence[LogprobEntry]) -> list[bytes]:
    """Encode entries in order, at most `PART` of them in each element of the result; no entries give an empty list."""
    following = iter(entries)
    return [_encode(part) for part in iter(lambda: list(islice(following, PART)), [])]


def unpack(parts: Sequence[bytes]) -> Iterator[LogprobEntry]:
    """Yield the entries that `pack` encoded; decodes one element of `parts` at a time."""
    for part in parts:
        yield from _decode(part)
