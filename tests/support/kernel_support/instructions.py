"""Every instruction set and element type that the CPU kernels were compiled for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch

from plimsoll_kernels.cpu.library import VARIABLE, kernels, runnable
from plimsoll_kernels.cpu.records import KernelsRecord


@dataclass(frozen=True, slots=True)
class Build:
    """One build of the kernels."""

    instructions: str
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.instructions}-{str(self.dtype).removeprefix('torch.')}"

    def kernels(self) -> KernelsRecord:
        """Return its functions; skip the test if this processor cannot run them, or none were built."""
        if self.instructions not in runnable():
            pytest.skip(f"this processor does not have {self.instructions}, or the kernels were not built")
        found = kernels(self.dtype, self.instructions)
        assert found is not None
        assert found.name == self.instructions.encode()
        return found


FLOAT32 = tuple(Build(name, torch.float32) for name in ("avx2", "avx512"))
BFLOAT16 = tuple(Build(name, torch.bfloat16) for name in ("avx2", "avx512", "avx512_bf16", "amx"))
BUILDS = (*FLOAT32, *BFLOAT16)
SETS = (*FLOAT32, *BFLOAT16[2:])
"""One build for each instruction set, for tests that do not depend on the element type."""


@contextmanager
def forced(build: Build) -> Iterator[Build]:
    """Make every caller use the kernels of this build; skip the test if they cannot run."""
    build.kernels()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, build.instructions)
        yield build
