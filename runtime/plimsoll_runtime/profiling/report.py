"""Everything that a profile found, as one record: what the table shows and the JSON file holds."""

from __future__ import annotations

import msgspec

from plimsoll_kernels.cpu.speed import Speed
from plimsoll_runtime.profiling.summary import StepFigures


class Report(msgspec.Struct, frozen=True):
    """Seconds, bytes, operations and tokens. `bandwidth` and `rate` are the machine's, probed before and after.

    `kernels` are our own for CPUs, where they compute.
    """

    model: str
    architecture: str
    dtype: str
    device: str
    attention_backend: str
    threads: int
    workload: str
    batch: int
    prompt_len: int
    output_len: int
    prompt_tokens: int
    output_tokens: int
    seconds: float
    bandwidth: float
    rate: float
    kernels: Speed | None
    steps: list[StepFigures]
    provenance: dict[str, str | int]
