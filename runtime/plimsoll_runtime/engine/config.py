"""What an engine is started with: the same record for the server, the `LLM` class and laptop mode."""

from __future__ import annotations

from dataclasses import dataclass, replace

from plimsoll_runtime.engine.protocol.pooling import TASKS
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
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
"""Tokens of a KV block that kernels are made for."""
STEP_SECONDS = 60.0
"""Enough for what a step may have to do for the first time, such as compiling a kernel."""
LEAST_STEP_SECONDS = 1.0


def attention_backend(text: str) -> str:
    """The name of an attention backend, or of two, joined by +: of the one for prompts and the one for decodes."""
    names = text.split("+")
    alone = set(ATTENTION_BACKENDS) - {"auto"}
    if text != "auto" and not (len(names) <= 2 and alone.issuperset(names)):
        raise values.OptionError(f"invalid choice: {text[:64]!r} (choose from {', '.join(ATTENTION_BACKENDS)})")
    return text


OF_MODEL = Option(("serve", "batch", "profile", "LLM"), "engine")
ENGINE = replace(OF_MODEL, where=(*OF_MODEL.where, "host API"))
RUNTIME = replace(ENGINE, deployment="runtime.*")
DEVICE = (
    "what models run on. cuda: a GPU, with CUDA or with ROCm, or a refusal with exit code 8 where torch finds none; "
    "cpu: no GPU is touched; auto: a GPU wherever torch finds one, else the CPU"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of one engine. Sizes in tokens unless they say bytes; None means decided from model and machine.

    Raises UsageError when built with a value that no engine can have.

    `model` is a folder, a .gguf file, demo://NAME or a Hugging Face id (hf://ID too).
    Sizes of memory are texts such as "2GiB" or "40%".

    `task`: see `engine.protocol.pooling`. `overlap`, `offline` (nobody watches the outputs come, so only the last one's
    time counts): see `overlaps` and `scheduler.token_budget`. `graph_seconds`, `graph_memory`: see
    `execution.graphs.capture`.
    """

    model: str
    revision: str | None = option(
        None, "branch, tag or commit of a Hugging Face model", OF_MODEL, metavar="R", deployment="model.revision"
    )
    model_impl: str = option(
        "auto",
        "whose code computes the model: ours, or Transformers' own with our attention; auto: ours where we have it",
        ENGINE,
        choices=MODEL_IMPLS,
    )
    trust_remote_code: bool = option(
        False,
        "run the code that comes with the model (auto_map in its config.json), where neither we nor Transformers "
        "have its class; it can do whatever this process can, so give it only where you trust whoever wrote it",
        OF_MODEL,
        deployment="model.*",
    )
    task: str = option(
        "auto",
        "what the model is served for: generate (chat and completions), embed (vectors), classify (labels) or "
        "score (how well two texts go together); auto: what its files say",
        RUNTIME,
        choices=TASKS,
    )
    dtype: str = option(
        "auto",
        "what weights and activations are computed in; auto: the model's own where the device is fast at it",
        RUNTIME,
        choices=DTYPES,
    )
    max_model_len: int | None = option(
        None,
        "longest prompt and answer together",
        RUNTIME,
        unit="tokens",
        minimum=2,
        parse=values.positive,
        usual="what model and memory allow",
    )
    max_batch_tokens: int = option(2048, "most tokens computed in one step", RUNTIME, unit="tokens")
    max_sequences: int = option(128, "most sequences in one batch", RUNTIME)
    policy: str = option(
        "fcfs",
        "who is served first: first come, by the requests' priority or deadline, the shortest job, or the longest "
        "cached prefix",
        RUNTIME,
        choices=POLICIES,
    )
    overlap: bool | None = option(
        None, "plan a step while the one before it runs, not once it is over", ENGINE, usual="on a GPU"
    )
    offline: bool = False
    step_timeout: float = option(
        STEP_SECONDS,
        "how long every step may take. One that takes longer, and ten times as long as steps of its size have "
        "taken, means that the engine hangs: its requests fail and the process ends, so that whatever supervises "
        "it starts it again; 0 is never",
        RUNTIME,
        unit="seconds",
    )
    kv_memory: str | None = option(
        None,
        "memory for the KV cache: 2GiB (or 2Gi, 2e9), or 40% of what weights and steps leave free",
        RUNTIME,
        unit="bytes",
        parse=values.memory,
    )
    kv_host_memory: str | None = option(
        None,
        "on a GPU: host memory for cached blocks that the KV cache has no room for",
        ENGINE,
        unit="bytes",
        parse=values.memory,
        usual="none",
    )
    kv_disk: str | None = option(
        None,
        "a folder for cached blocks that memory has no room for; what an earlier run left is found again",
        ENGINE,
        metavar="PATH",
        parse=values.path,
    )
    kv_disk_size: str | None = option(
        None,
        "how much --kv-disk may hold: 20GiB, or 40% of what is free there",
        ENGINE,
        unit="bytes",
        parse=values.memory,
    )
    block_size: int = option(
        16, "tokens of a KV block, a power of two from 8 to 256", RUNTIME, unit="tokens", choices=BLOCK_SIZES
    )
    prefix_caching: bool = option(
        True,
        "let prompts share what they have in common; without it each is computed from its first token",
        RUNTIME,
        usual="on",
    )
    state_snapshots: int | None = option(
        None,
        "of models with recurrent layers: how many prefixes have their states kept, each with as much memory as a "
        "sequence's; 0: no prefix is found",
        RUNTIME,
        minimum=0,
        usual="a quarter of --max-sequences, at least 8",
    )
    device: str = option("auto", DEVICE, OF_MODEL, choices=DEVICES)
    threads: int | None = option(None, "CPU threads", RUNTIME, usual="all cores")
    attention_backend: str = option(
        "auto",
        f"what computes attention ({', '.join(ATTENTION_BACKENDS[1:])}; on a GPU two joined by +, for prompts and "
        "for decodes); auto: the fastest that runs here, and the next one where it fails",
        RUNTIME,
        metavar="NAME",
        choices=ATTENTION_BACKENDS,
        parse=attention_backend,
    )
    graph_seconds: float = option(
        20.0,
        "on a GPU: how long steps are captured as graphs before the first request; sizes that then have none are "
        "launched kernel by kernel; 0: no graphs",
        ENGINE,
        unit="seconds",
    )
    graph_memory: str = option(
        "512MiB", "on a GPU: memory that these graphs may take", ENGINE, unit="bytes", parse=values.memory
    )
    check_integrity_every: int = option(
        0,
        "compare the engine's records of blocks, slots and sequences after so many steps, and end with an error "
        "where they disagree; 0 is never",
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


def overlaps(config: EngineConfig, device: str) -> bool:
    """Whether steps overlap on this device, where the config leaves it open: not on a CPU that serves.

    There planning competes with computing for the cores, and its work is some percent of a step's; what that would
    gain, a request that comes right after the next step was planned would lose in time to its first token.
    """
    return config.offline or device != "cpu" if config.overlap is None else config.overlap
