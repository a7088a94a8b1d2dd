"""What an engine is started with: the same record for the server, the `LLM` class and laptop mode."""

from __future__ import annotations

import msgspec

from plimsoll_runtime.engine.protocol.pooling import TASKS
from plimsoll_runtime.errors import UsageError

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
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
_LEAST = {
    "max_model_len": 2,
    "max_batch_tokens": 1,
    "max_sequences": 1,
    "threads": 1,
    "state_snapshots": 0,
    "check_integrity_every": 0,
}
STEP_SECONDS = 60.0
"""Enough for what a step may have to do for the first time, such as compiling a kernel."""
LEAST_STEP_SECONDS = 1.0


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one engine. Sizes in tokens unless they say bytes; None means decided from model and machine.

    Raises UsageError when built with a number that no engine can have.

    `state_snapshots`: of models with recurrent layers, how many prefixes' states are kept; None: by `max_sequences`.
    `kv_memory` is a text such as "2GiB" or "40%" (of what weights and steps leave free), `kv_host_memory` and
    `kv_disk_size` likewise, of the host memory and of the disk space that is free. `kv_disk` is the folder for cached
    blocks that the KV cache has no room for.
    `model` is a folder, a .gguf file, demo://NAME or a Hugging Face id (hf://ID too).
    `model_impl`: whose code computes the model: "native" is ours, "transformers" Transformers' own with our attention;
    "auto" is ours where we have it.
    `trust_remote_code`: whether code that comes with a model may run, where neither we nor Transformers have its class.
    `device`: what the model runs on: "cuda" is a GPU (torch calls AMD's so too) or a refusal, "auto" a GPU wherever
    torch finds one; with "cpu" none is touched.
    `task`: what the model is served for (see `protocol.pooling`); "auto" is what its files say.
    `overlap`: whether a step is planned while the one before it runs, in a thread of its own (see `overlaps`).
    `offline`: nobody watches the answers come, so only the last one's time counts (see `overlaps` and
    `scheduler.token_budget`).
    `step_timeout`: seconds that every step may take; one that takes longer than that, and than ten times what steps of
    its size have taken, means that the engine's process has hung: it is ended. 0 is never.
    `graph_seconds`, `graph_memory`: on a GPU, how long steps are captured as graphs before the first request (0: none
    is), and what graphs may take of the device's memory (a text like those above); see `execution.graphs.capture`.
    `check_integrity_every`: steps after which the records of blocks, slots and sequences are compared; 0 is never.
    """

    model: str
    revision: str | None = None
    model_impl: str = "auto"
    trust_remote_code: bool = False
    task: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    max_model_len: int | None = None
    max_batch_tokens: int = 2048
    max_sequences: int = 128
    kv_memory: str | None = None
    kv_host_memory: str | None = None
    kv_disk: str | None = None
    kv_disk_size: str | None = None
    block_size: int = 16
    threads: int | None = None
    prefix_caching: bool = True
    state_snapshots: int | None = None
    attention_backend: str = "auto"
    policy: str = "fcfs"
    overlap: bool | None = None
    offline: bool = False
    step_timeout: float = STEP_SECONDS
    graph_seconds: float = 20.0
    graph_memory: str = "512MiB"
    check_integrity_every: int = 0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} must be at least {least}, not {value}")
        if self.step_timeout and not self.step_timeout >= LEAST_STEP_SECONDS:
            raise UsageError(
                f"step_timeout must be 0 (never) or at least {LEAST_STEP_SECONDS:g}, not {self.step_timeout}"
            )
        if not self.graph_seconds >= 0:
            raise UsageError(f"graph_seconds must be 0 (no graphs) or more, not {self.graph_seconds}")
        if self.model_impl not in MODEL_IMPLS:
            raise UsageError(f"model_impl must be one of {', '.join(MODEL_IMPLS)}, not {self.model_impl}")
        if self.device not in DEVICES:
            raise UsageError(f"device must be one of {', '.join(DEVICES)}, not {self.device}")
        if self.task not in TASKS:
            raise UsageError(f"task must be one of {', '.join(TASKS)}, not {self.task}")
        if self.block_size not in BLOCK_SIZES:
            raise UsageError(f"block_size must be one of {', '.join(map(str, BLOCK_SIZES))}, not {self.block_size}")


def overlaps(config: EngineConfig, device: str) -> bool:
    """Whether steps overlap on this device, where the config leaves it open: not on a CPU that serves.

    There planning competes with computing for the cores, and its work is some percent of a step's; what that would
    gain, a request that comes right after the next step was planned would lose in time to its first token.
    """
    return config.offline or device != "cpu" if config.overlap is None else config.overlap
