"""Options of an engine: one record for the server, the `LLM` class and laptop mode."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from plimsoll_runtime.engine.group_options import GroupOptions
from plimsoll_runtime.engine.protocol.pooling import TASKS
from plimsoll_runtime.engine.step_tracing import StepTracing
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils import option_values as values
from plimsoll_runtime.utils.option import Option, check_options, option

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
POLICIES = ("fcfs", "priority", "sjf", "prefix", "deadline")
MODEL_IMPLS = ("auto", "native", "transformers")
ATTENTION_BACKENDS = (
    "auto",
    "cpu",
    "torch",
    "triton",
    "flashinfer",
    "flash-attn-3",
    "flash-attn",
    "cudnn-paged",
    "cudnn",
    "torch-flash",
    "sdpa",
    "reference",
)
GROUP_BACKENDS = ("auto", "nccl", "gloo", "local")
MOST_RANKS = 64
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
"""Tokens of a KV block for which kernels exist."""
STEP_SECONDS = 60.0
"""Default of `step_timeout`: enough for one-time work in a step, such as compiling a kernel."""
LEAST_STEP_SECONDS = 1.0


def attention_backend(text: str) -> str:
    """Return the text if it is "auto", the name of an attention backend, or two names joined by + (prompts first, then
    decodes).

    Raises OptionError for an unknown name.
    """
    names = text.split("+")
    alone = set(ATTENTION_BACKENDS) - {"auto"}
    if text != "auto" and not (len(names) <= 2 and alone.issuperset(names)):
        raise values.OptionError(f"invalid choice: {text[:64]!r} (choose from {', '.join(ATTENTION_BACKENDS)})")
    return text


OF_MODEL = Option(("serve", "batch", "profile", "LLM"), "engine")
ENGINE = replace(OF_MODEL, where=(*OF_MODEL.where, "host API"))
RUNTIME = replace(ENGINE, deployment="runtime.*")
OF_GROUP = replace(OF_MODEL, where=("serve", "batch", "LLM"))
DEVICE = (
    "device of the models. auto: a GPU if torch finds one, else the CPU; cuda: a GPU (CUDA or ROCm), exits with "
    "code 8 if torch finds none; cpu: the CPU only, no GPU is used"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of one engine. Sizes are in tokens unless the name says bytes; None: derived from the model and the
    machine.

    Raises UsageError when built with an invalid value.

    `model` is a folder, a .gguf file, demo://NAME or a Hugging Face id (with or without hf://).
    Memory sizes are texts such as "2GiB" or "40%".

    `offline`: clients read only finished outputs, so throughput counts and latency does not. It changes overlap (see
    `overlaps`) and the token budget (see `scheduler.token_budget`). `step_tracing`: which steps are recorded for
    traces; None: traces are off. For `task` see `engine.protocol.pooling`; for `graph_seconds` and `graph_memory` see
    `execution.graphs.capture`.
    """

    model: str
    revision: str | None = option(
        None, "branch, tag or commit of a Hugging Face model", OF_MODEL, metavar="R", deployment="model.revision"
    )
    model_impl: str = option(
        "auto",
        "implementation of the model: native (Plimsoll's programs) or transformers (the code of Hugging Face "
        "Transformers with Plimsoll's attention); auto: native if it supports the architecture",
        ENGINE,
        choices=MODEL_IMPLS,
    )
    trust_remote_code: bool = option(
        False,
        "run the code that the model's repository contains (auto_map in its config.json) if neither Plimsoll nor "
        "Transformers has its class. The code has all rights of this process: use it only for authors that you "
        "trust",
        OF_MODEL,
        deployment="model.*",
    )
    task: str = option(
        "auto",
        "task of the model: generate (chat and completions), embed (vectors), classify (labels) or score "
        "(relevance of one text to another); auto: chosen from the model's files",
        RUNTIME,
        choices=TASKS,
    )
    dtype: str = option(
        "auto",
        "data type of weights and activations; auto: the type in the model's config if the device computes it fast",
        RUNTIME,
        choices=DTYPES,
    )
    max_model_len: int | None = option(
        None,
        "maximum length of prompt and output together",
        RUNTIME,
        unit="tokens",
        minimum=2,
        parse=values.positive,
        usual="the most that model and memory allow",
    )
    max_batch_tokens: int = option(2048, "maximum number of tokens computed in one step", RUNTIME, unit="tokens")
    max_sequences: int = option(128, "maximum number of sequences that run at once", RUNTIME)
    policy: str = option(
        "fcfs",
        "scheduling policy, the order in which requests are served: fcfs (by arrival), priority or deadline (by "
        "these fields of the request), sjf (shortest job first), prefix (longest cached prefix first)",
        RUNTIME,
        choices=POLICIES,
    )
    overlap: bool | None = option(None, "plan the next step while the current one runs", ENGINE, usual="on a GPU")
    offline: bool = False
    step_tracing: StepTracing | None = None
    step_timeout: float = option(
        STEP_SECONDS,
        "limit of every step. A step that takes longer, and also ten times as long as earlier steps of its size, "
        "counts as hung: its requests fail and the process exits, so that its supervisor restarts it; 0: no limit",
        RUNTIME,
        unit="seconds",
    )
    kv_memory: str | None = option(
        None,
        "memory for the KV cache: 2GiB (or 2Gi, 2e9), or a share such as 40% of the memory that weights and "
        "steps leave free",
        RUNTIME,
        unit="bytes",
        parse=values.memory,
    )
    kv_host_memory: str | None = option(
        None,
        "on a GPU: host memory for cached blocks that do not fit into the KV cache",
        ENGINE,
        unit="bytes",
        parse=values.memory,
        usual="none",
    )
    kv_disk: str | None = option(
        None,
        "folder for cached blocks that do not fit into memory; a restarted server reuses the blocks in it",
        ENGINE,
        metavar="PATH",
        parse=values.path,
    )
    kv_disk_size: str | None = option(
        None,
        "size limit of --kv-disk: 20GiB, or a share such as 40% of the free disk space",
        ENGINE,
        unit="bytes",
        parse=values.memory,
    )
    block_size: int = option(
        16, "tokens in a KV block, a power of two from 8 to 256", RUNTIME, unit="tokens", choices=BLOCK_SIZES
    )
    prefix_caching: bool = option(
        True,
        "reuse the computed blocks of prompts that begin alike; without it every prompt is computed from its "
        "first token",
        RUNTIME,
        usual="on",
    )
    state_snapshots: int | None = option(
        None,
        "models with recurrent layers: number of prefixes whose states are kept. Each takes as much memory as "
        "the states of a sequence; 0: prefixes are not reused",
        RUNTIME,
        minimum=0,
        usual="a quarter of --max-sequences, at least 8",
    )
    device: str = option("auto", DEVICE, OF_MODEL, choices=DEVICES)
    threads: int | None = option(None, "CPU threads", RUNTIME, usual="all cores")
    tensor_parallel: int = option(
        1,
        "number of processes (ranks) that share the model: each has a part of every layer, of the KV cache and, on a "
        "CPU, of the threads; on GPUs each has one GPU",
        OF_GROUP,
        unit="",
        maximum=MOST_RANKS,
        deployment="parallel.tensor",
    )
    pipeline_parallel: int = option(
        1,
        "number of stages that a step passes one after the other: each has some of the layers, and the last one also "
        "the output layer. Each stage has --tensor-parallel ranks. Several steps are under way at once",
        OF_GROUP,
        unit="",
        maximum=MOST_RANKS,
        deployment="parallel.pipeline",
    )
    group_backend: str = option(
        "auto",
        "how ranks exchange results: nccl (GPUs), gloo (CPUs) or local (CPUs: by Plimsoll's "
        "kernels, over shared memory or TCP); auto: nccl on GPUs, else local if possible",
        OF_GROUP,
        choices=GROUP_BACKENDS,
        deployment="runtime.*",
    )
    check_collectives: bool = option(
        False,
        "compare what ranks exchange, which takes longer: if one calls another operation than "
        "the others, all are replaced and the log names both operations",
        OF_GROUP,
    )
    group: GroupOptions = field(default_factory=GroupOptions)
    recover_seconds: float = option(
        30.0,
        "if a rank ends, requests wait for its replacement for this long, then get the status 503",
        OF_GROUP,
        unit="seconds",
        deployment="parallel.*",
    )
    attention_backend: str = option(
        "auto",
        f"attention backend: {', '.join(ATTENTION_BACKENDS[1:])}; on a GPU also two joined by + (for prefill and "
        "decode). auto: the fastest that runs here; if it fails, the next one",
        RUNTIME,
        metavar="NAME",
        choices=ATTENTION_BACKENDS,
        parse=attention_backend,
    )
    graph_seconds: float = option(
        20.0,
        "on a GPU: time limit for capturing CUDA graphs before the first request; batch sizes without a graph "
        "launch kernel by kernel; 0: no graphs",
        ENGINE,
        unit="seconds",
    )
    graph_memory: str = option(
        "512MiB", "on a GPU: memory limit of CUDA graphs", ENGINE, unit="bytes", parse=values.memory
    )
    check_integrity_every: int = option(
        0,
        "check the engine's records of blocks, slots and sequences every STEPS steps, and exit with an error if "
        "they disagree; 0: never",
        ENGINE,
        unit="steps",
        minimum=0,
    )

    def __post_init__(self) -> None:
        if self.step_timeout and not self.step_timeout >= LEAST_STEP_SECONDS:
            raise UsageError(
                f"step_timeout must be 0 (never) or at least {LEAST_STEP_SECONDS:g}, not {self.step_timeout}"
            )
        check_options(self)
        if self.ranks > MOST_RANKS:
            raise UsageError(
                f"--tensor-parallel {self.tensor_parallel} times --pipeline-parallel {self.pipeline_parallel} are "
                f"{self.ranks} ranks; use at most {MOST_RANKS}"
            )
        if self.ranks % self.group.size:
            raise UsageError(
                f"{self.ranks} ranks (--tensor-parallel {self.tensor_parallel} times --pipeline-parallel "
                f"{self.pipeline_parallel}) must be a multiple of --group-size {self.group.size}: every member has the "
                "same number of ranks"
            )

    @property
    def ranks(self) -> int:
        """Number of processes that compute a step together."""
        return self.tensor_parallel * self.pipeline_parallel


def overlaps(config: EngineConfig, device: str) -> bool:
    """Return whether steps overlap on this device. By default they do, except on a CPU that serves.

    On a CPU, planning competes with computing for the cores and takes only some percent of a step's time. Overlap would
    gain less than it costs: a request that arrives just after the next step was planned gets its first token later.
    """
    return config.offline or device != "cpu" if config.overlap is None else config.overlap
