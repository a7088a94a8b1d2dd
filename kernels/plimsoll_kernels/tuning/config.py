"""The tile sizes and launch parameters of a kernel, which do not change its results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Rows and columns (or tokens) of a tile, both powers of 2; warps of a program; stages of its software pipeline."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "num_warps"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise ValueError(f"{name} is {value}; it must be a power of 2")
        if self.num_stages < 1:
            raise ValueError(f"num_stages is {self.num_stages}; it must be at least 1")
