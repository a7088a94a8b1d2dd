"""What an engine is started with: the same record for the server, the `LLM` class and laptop mode."""

from __future__ import annotations

import msgspec

DTYPES = ("auto", "float32", "bfloat16", "float16")
ATTENTION_BACKENDS = ("auto", "cpu", "torch", "triton", "reference")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one engine. Sizes in tokens unless they say bytes; None means decided from model and machine.

    `kv_memory` is a text such as "2GiB" or "40%" (of the memory that is free once the weights are loaded).
    `model` is a folder, a .gguf file, demo://NAME or a Hugging Face id (hf://ID too).
    `overlap`: whether a step is planned while the one before it runs, in a thread of its own (see `overlaps`).
    `check_integrity_every`: steps after which the records of blocks, slots and sequences are compared; 0 is never.
    """

    model: str
    revision: str | None = None
    dtype: str = "auto"
    max_model_len: int | None = None
    max_batch_tokens: int = 2048
    max_sequences: int = 128
    kv_memory: str | None = None
    block_size: int = 16
    threads: int | None = None
    prefix_caching: bool = True
    attention_backend: str = "auto"
    policy: str = "fcfs"
    overlap: bool | None = None
    check_integrity_every: int = 0


def overlaps(config: EngineConfig, device: str) -> bool:
    """Whether steps overlap on this device, where the config leaves it open: not on a CPU.

    There planning competes with computing for the cores, and its work is some percent of a step's; what that would
    gain, a request that comes right after the next step was planned would lose in time to its first token.
    """
    return device != "cpu" if config.overlap is None else config.overlap
